"""What a trial gave, for a person: at the terminal, as HTML, and as JSON lines."""

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from schemas.experiences import Experience
from services.debug.trial import Trial

_WIDTH = 120


def show(trial: Trial, console: Console) -> None:
    """Every experience with its texts, and a table of their numbers."""
    for experience in trial.experiences:
        console.print(_panel(experience))
    console.print(_table(trial))
    number, tokens = len(trial.experiences), sum(int(each.action_mask.sum()) for each in trial.experiences)
    said = f"{number} experiences, {tokens} tokens to learn from, {trial.seconds:.2f} s"
    told = f"task {trial.task.task.task_id}, workflow {trial.task.workflow}: {said}"
    console.print(told, highlight=False, soft_wrap=True)


def write(trial: Trial, path: Path) -> None:
    """The same as HTML where the path says so, else one JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in (".html", ".htm"):
        recording = Console(record=True, width=_WIDTH, file=io.StringIO())
        show(trial, recording)
        recording.save_html(str(path))
        return
    lines = [json.dumps(_row(trial, experience), ensure_ascii=False) for experience in trial.experiences]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _panel(experience: Experience) -> Panel:
    title = f"answer {experience.position}"
    title += f", step {experience.step}" if experience.step or experience.state else ""
    prompt, response = Text(experience.prompt_text, style="dim"), Text(experience.response_text)
    content = Group(prompt, Rule("response", style="dim"), response)
    return Panel(content, title=title, subtitle=f"reward {experience.reward:.4g}", title_align="left")


def _table(trial: Trial) -> Table:
    """`prompt`, `response` and `learned` count tokens; `log-prob` is the mean of those that are learned from."""
    metrics = sorted({name for experience in trial.experiences for name in experience.metrics})
    table = Table(expand=False)
    for name in ("answer", "reward", *metrics, "prompt", "response", "learned", "log-prob", "cut off"):
        table.add_column(name, justify="right", overflow="fold")
    for each in trial.experiences:
        learned = each.action_mask > 0
        mean = f"{float(each.logprobs[learned].mean()):.3f}" if learned.any() else "-"
        cells = [f"{each.position}.{each.step}" if each.step else str(each.position), f"{each.reward:.4g}"]
        cells += [f"{each.metrics[name]:.4g}" if name in each.metrics else "-" for name in metrics]
        cells += [str(each.prompt_length), str(each.response_length), str(int(learned.sum())), mean]
        table.add_row(*cells, "yes" if each.is_truncated else "no")
    return table


def _row(trial: Trial, experience: Experience) -> dict[str, Any]:
    return {
        "task_id": trial.task.task.task_id,
        "workflow": trial.task.workflow,
        "position": experience.position,
        "step": experience.step,
        "reward": experience.reward,
        "metrics": experience.metrics,
        "prompt_text": experience.prompt_text,
        "response_text": experience.response_text,
        "is_truncated": experience.is_truncated,
        "prompt_length": experience.prompt_length,
        "tokens": experience.tokens.tolist(),
        "action_mask": experience.action_mask.tolist(),
        "logprobs": experience.logprobs.tolist(),
        "temperature": experience.temperature,
        "seconds": trial.seconds,
    }

"""The table as the documentation shows it: `python -m services.convert.documenting docs/verl.md` writes it there."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from services.convert.placement import RULES
from services.convert.row import EVALUATION, GENERATION, PPO, SFT, Row
from services.convert.said import shown
from services.convert.table import TABLE

BEGIN, END = "<!-- the table: begin -->", "<!-- the table: end -->"
PARTS: tuple[tuple[str, str, str], ...] = (
    ("Data and batches", PPO, r"data\.|actor_rollout_ref\.actor\.ppo_mini_batch_size"),
    (
        "Algorithm and losses",
        PPO,
        r"\{?algorithm|actor_rollout_ref\.(actor\.(clip|entropy_c|kl_|use_kl|loss|policy|use_token|\{tau|optim)|rollout\.n$)",
    ),
    ("Sampling and evaluation", PPO, r"actor_rollout_ref\.rollout"),
    ("Rewards", PPO, r"\{?(reward|custom_reward|sandbox)"),
    ("Trainer", PPO, r"\{?(trainer|global_profiler|profile|distillation|async_training)"),
    ("Models and FSDP", PPO, r""),
    ("Supervised fine-tuning (`sft_trainer.yaml`)", SFT, r""),
    ("Generation (`generation.yaml`, main_generation)", GENERATION, r""),
    ("Evaluation (`evaluation.yaml`, main_eval)", EVALUATION, r""),
)


def table() -> str:
    """All rows by part, in Markdown, and the rules for what veRL does not say."""
    lines: list[str] = []
    taken: set[int] = set()
    for title, kind, pattern in PARTS:
        rows = [row for row in TABLE if id(row) not in taken and row.kinds[0] == kind and re.match(pattern, row.verl)]
        taken |= {id(row) for row in rows}
        lines += [f"### {title}", "", "| veRL | here | value | veRL's default | remark |", "|---|---|---|---|---|"]
        lines += [*dict.fromkeys(map(_line, rows)), ""]
    lines += ["### What veRL does not say", "", "| here | rule |", "|---|---|"]
    lines += [f"| {_code(rule.ours)} | {_plain(rule.told)} |" for rule in RULES]
    return "\n".join(lines)


def with_table(page: str) -> str:
    """The page with the table between its two marks.

    Raises:
        ValueError: the page lacks them.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def _line(row: Row) -> str:
    ours = _code(row.ours) if row.has_counterpart else "-"
    told = row.way.told if row.way else ""
    default = f"`{shown(row.default)}`" if row.is_one_key and isinstance(row.default, str | int | float | list) else ""
    return f"| {_code(row.verl)} | {ours} | {_plain(told)} | {default} | {_plain(row.note)} |"


def _code(keys: str) -> str:
    if "{" in keys:
        return f"`{keys}`"
    return ", ".join(f"`{key.strip()}`" for key in keys.split(",") if key.strip())


def _plain(words: str) -> str:
    return words.replace("|", "\\|").replace("*", "\\*")


def main(files: list[str]) -> Iterator[str]:
    for name in files:
        file = Path(name)
        file.write_text(with_table(file.read_text(encoding="utf-8")), encoding="utf-8")
        yield f"{file}: the table is written"


if __name__ == "__main__":
    for said in main(sys.argv[1:]):
        sys.stdout.write(f"{said}\n")

"""`trinity audit`: the account of a run, worked out from its stream and held against its ledger."""

import asyncio
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.options import ConfigOption, SetOption, loaded
from services.cli.printing import console, one_line
from services.config.tree import RunConfig

if TYPE_CHECKING:
    from rich.table import Table

    from services.account.audit import Audit

EXIT_UNSOUND = 3
_BAR_WIDTH = 24


def audit(
    config: ConfigOption,
    set_: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Account for every task and experience of a run, running or over. Exit status 3 if anything is lost or twice."""
    sys.exit(asyncio.run(_audit(loaded(config, set_).config, as_json)))


def add_to(app: typer.Typer) -> None:
    app.command()(audit)


async def _audit(config: RunConfig, as_json: bool) -> int:
    from services.account.audit import audit as audited
    from services.account.books import UnreadableLedger
    from services.rollout.errors import PluginError
    from services.runtime.bus_access import join_for_reading
    from services.trainer.pipeline.outcome import OperatorFailed

    bus, server = await join_for_reading(config, "audit")
    try:
        found = await audited(bus, config)
    except (UnreadableLedger, OperatorFailed, PluginError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_UNSOUND
    finally:
        await bus.close()
        if server is not None:
            await server.stop()
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2))
    else:
        for part in _shown(found):
            console().print(part)
    return 0 if found.account.is_sound else EXIT_UNSOUND


def _shown(found: "Audit") -> "Iterator[Table | str]":
    account = found.account
    yield f"{found.run} · {found.phase} · step {found.step}"
    yield f"ledger of step {account.step}: {account.source}"
    yield _numbers(found)
    if account.staleness:
        yield _staleness(account.staleness, "staleness of trained tokens, in steps")
    if account.reuse.staleness:
        yield _staleness(account.reuse.staleness, "staleness of tokens that are trained on again, in steps")
    if account.explorers:
        yield _explorers(found)
    yield from _incarnations(found)
    for note in account.notes:
        yield f"note: {note}"
    for disagreement in account.disagreements:
        yield f"DISAGREES: {disagreement}"
    yield _verdict(found)


def _verdict(found: "Audit") -> str:
    account = found.account
    if account.is_sound:
        return "lost 0, twice 0: the ledger holds what the stream says"
    return f"lost {account.lost}, twice {account.twice}: the ledger and the stream do not agree (exit status 3)"


def _numbers(found: "Audit") -> "Table":
    from rich.table import Table

    account = found.account
    tasks, experiences = account.tasks, account.experiences()
    shown = Table(show_header=False, box=None, pad_edge=False)
    shown.add_column(style="bold")
    shown.add_column()
    shown.add_column(justify="right")
    shown.add_column()
    for what, number, remark in (
        ("released", tasks.released, f"{tasks.reissued} times anew" if tasks.reissued else ""),
        ("answered", tasks.answered, ""),
        ("abandoned", tasks.abandoned, "given up after synchronizer.max_deliver deliveries"),
        ("waiting", tasks.waiting, _waiting_tasks(found)),
    ):
        shown.add_row("tasks" if what == "released" else "", what, str(number), remark)
    rows = [
        ("published", experiences["published"], ""),
        ("trained", experiences["trained"], f"{account.tally.tokens_trained} tokens"),
        *_reused(found),
        *((f"filtered: {rule}", number, _filtered_by(rule)) for rule, number in experiences["filtered"].items()),
        ("duplicates", experiences["duplicates"], "answers of tasks that had one"),
        ("withheld", experiences["withheld"], "in quarantined messages that can be read"),
        ("waiting", experiences["waiting"], _waiting_experiences(found)),
        ("lost", experiences["lost"], "must be 0"),
        ("twice", experiences["twice"], "must be 0"),
    ]
    for what, number, remark in rows:
        shown.add_row("experiences" if what == "published" else "", what, str(number), remark)
    reasons = [(stream, reason, n) for stream, counts in found.quarantine.items() for reason, n in counts.items()]
    for position, (stream, reason, number) in enumerate(reasons):
        shown.add_row("" if position else "quarantine", stream, str(number), one_line(reason))
    return shown


def _reused(found: "Audit") -> Iterator[tuple[str, int, str]]:
    tally, reuse = found.account.tally, found.account.reuse
    if tally.reused:
        uses = ", ".join(f"{experiences} a {_nth(number)} time" for number, experiences in sorted(reuse.uses.items()))
        yield "trained again", tally.reused, f"{tally.tokens_reused} tokens, by the rule in the ledger: {uses}"


def _nth(number: int) -> str:
    return {2: "2nd", 3: "3rd"}.get(number, f"{number}th")


def _filtered_by(rule: str) -> str:
    return "owed by these tasks" if rule == "abandoned" else "left out of answers by the experience pipeline"


def _waiting_tasks(found: "Audit") -> str:
    tasks = found.account.tasks
    parts = [
        f"{number} {what}"
        for what, number in (
            ("in the queue or in hand", tasks.queued),
            ("with an answer in quarantine", tasks.quarantined),
            ("in neither: the synchronizer releases them anew", tasks.missing),
        )
        if number
    ]
    return ", ".join(parts)


def _waiting_experiences(found: "Audit") -> str:
    held = found.account.uncommitted
    return f"{held} of them trained on, in no checkpoint yet" if held else "beyond the ledger"


def _staleness(tokens_by_staleness: dict[int, int], title: str) -> "Table":
    from rich.table import Table

    shown = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("steps", "tokens", "share"):
        shown.add_column(name, justify="right")
    shown.add_column("")
    total = sum(tokens_by_staleness.values())
    for steps, tokens in sorted(tokens_by_staleness.items()):
        shown.add_row(str(steps), str(tokens), f"{tokens / total:.1%}", "█" * round(_BAR_WIDTH * tokens / total))
    return shown


def _explorers(found: "Audit") -> "Table":
    from rich.table import Table

    shown = Table(box=None, pad_edge=False)
    shown.add_column("explorer")
    names = ("groups", "redelivered", "abandoned", "experiences", "trained", "filtered", "duplicates", "waiting")
    for name in names:
        shown.add_column(name, justify="right")
    for explorer, tally in sorted(found.account.explorers.items()):
        shown.add_row(one_line(explorer), *(str(getattr(tally, name)) for name in names))
    return shown


def _incarnations(found: "Audit") -> Iterator[str]:
    taken = found.incarnation
    if taken is None:
        return
    lives = [f"{resumed.incarnation} from step {resumed.step}" for resumed in taken.lineage]
    yield f"trainer: incarnation {taken.incarnation}" + (f" ({', '.join(lives)})" if lives else "")
    if found.account.most_attempts > 1:
        yield f"deliveries of one task: up to {found.account.most_attempts}"

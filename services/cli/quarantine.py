"""`trinity quarantine`: list what could not be used, look into it, put it back, or take it away."""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.options import ConfigOption, SetOption, loaded
from services.cli.printing import console, one_line
from services.config.tree import RunConfig

if TYPE_CHECKING:
    from bus.port import Bus
    from services.account.quarantine import Contents, Entry

ReasonOption = Annotated[str, typer.Option("--reason", help="Only those whose reason contains this.")]
StreamOption = Annotated[str, typer.Option("--stream", help="Only those of this stream: tasks, experiences, ...")]
NumbersArgument = Annotated[list[int] | None, typer.Argument(help="Their numbers, as `list` shows them.")]
AllOption = Annotated[bool, typer.Option("--all", help="All of them, or all that --reason selects.")]

_DUMPED_BYTES = 256
_LONGEST_TEXT = 400
_SHOWN_ITEMS = 8
_SHOWN_REASON = 100

app = typer.Typer(
    name="quarantine", no_args_is_help=True, help="What could not be used: list it, put it back, drop it."
)


def add_to(parent: typer.Typer) -> None:
    parent.add_typer(app)


@app.command("list")
def list_(
    config: ConfigOption,
    reason: ReasonOption = "",
    stream: StreamOption = "",
    set_: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """List what lies in the quarantine of a run, running or over, with a count by reason."""

    async def work(bus: "Bus", config: RunConfig) -> int:
        from services.account.quarantine import entries

        found = entries(bus, reason=reason, stream=stream)
        if as_json:
            async for entry in found:
                typer.echo(json.dumps(entry.as_json()))
        else:
            _tell([entry.as_json() async for entry in found])
        return 0

    _run(config, set_, work)


@app.command()
def show(
    number: Annotated[int, typer.Argument(help="Its number, as `list` shows it.")],
    config: ConfigOption,
    raw: Annotated[Path | None, typer.Option("--raw", help="Also write the bytes of the message to this file.")] = None,
    set_: SetOption = None,
) -> None:
    """Show everything about one: where it came from, why it lies here, and what it holds, as far as it can be read."""

    async def work(bus: "Bus", config: RunConfig) -> int:
        from services.account.quarantine import entries, opened

        async for entry in entries(bus, [number]):
            contents = await opened(bus, entry)
            for line in _described(entry, contents):
                typer.echo(line)
            if raw is not None:
                raw.write_bytes(contents.payload)
                typer.echo(f"{len(contents.payload)} bytes written to {raw}")
            return 0
        return _refused(f"there is no number {number} in the quarantine")

    _run(config, set_, work)


@app.command()
def retry(
    config: ConfigOption,
    numbers: NumbersArgument = None,
    every: AllOption = False,
    reason: ReasonOption = "",
    set_: SetOption = None,
) -> None:
    """Put messages back: a task is released anew, an answer or a metric that can be read now returns to its stream.

    What would be refused again stays, with the reason. The exit status is then 1.
    """

    async def work(bus: "Bus", config: RunConfig) -> int:
        from services.account.quarantine import CannotRetry, Retrying

        retrying = await Retrying.begin(bus, config)
        streams: set[str] = set()

        async def act(entry: "Entry") -> bool:
            try:
                typer.echo(f"{entry.number}: {await retrying.retry(entry)}")
            except CannotRetry as error:
                typer.echo(f"{entry.number}: stays: {one_line(str(error))}")
                return False
            streams.add(entry.stream)
            return True

        status = await _each(bus, numbers, every, reason, act, "retried")
        for stream in sorted(streams):
            for service in retrying.absent(stream):
                typer.echo(f"note: no {service} is a member of the run: what went back to {stream} waits for one")
        return status

    _run(config, set_, work, changes=True)


@app.command()
def drop(
    config: ConfigOption,
    numbers: NumbersArgument = None,
    every: AllOption = False,
    reason: ReasonOption = "",
    set_: SetOption = None,
) -> None:
    """Take messages out of the quarantine for good, with the blobs that they alone hold."""

    async def work(bus: "Bus", config: RunConfig) -> int:
        from services.account.quarantine import drop as dropped

        async def act(entry: "Entry") -> bool:
            await dropped(bus, entry)
            return True

        return await _each(bus, numbers, every, reason, act, "dropped")

    _run(config, set_, work, changes=True)


async def _each(
    bus: "Bus",
    numbers: list[int] | None,
    every: bool,
    reason: str,
    act: "Callable[[Entry], Awaitable[bool]]",
    done: str,
) -> int:
    """Do `act` to the chosen entries. The exit status: 1 where one was not there or stays."""
    from services.account.quarantine import entries

    if bool(numbers) == every:
        return _refused("name the numbers, or say --all (with --reason TEXT: all whose reason contains it)")
    seen: set[int] = set()
    successes = 0
    async for entry in entries(bus, numbers or (), reason):
        seen.add(entry.number)
        successes += await act(entry)
    for missing in sorted(set(numbers or ()) - seen):
        typer.echo(f"{missing}: there is no such number" + (f" with {reason!r} in its reason" if reason else ""))
    typer.echo(f"{successes} {done}, {len(seen) - successes} left")
    return 0 if successes == len(seen) == len(set(numbers) if numbers else seen) else 1


def _tell(found: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    if not found:
        typer.echo("the quarantine holds nothing of that kind")
        return
    shown = Table(box=None, pad_edge=False)
    for name in ("number", "when", "stream", "from", "attempts", "schema", "reason"):
        shown.add_column(name, justify="right" if name in ("number", "attempts") else "left")
    for item in found:
        cells = (
            str(item["number"]),
            _when(item["at"]),
            item["stream"],
            item["publisher"],
            str(item["attempts"] or "-"),
            item["schema"] or "-",
            _shortened(item["reason"], _SHOWN_REASON),
        )
        shown.add_row(*(Text(one_line(cell)) for cell in cells))
    console().print(shown)
    typer.echo("")
    for reason, number in Counter(_shortened(item["reason"], _SHOWN_REASON) for item in found).most_common():
        typer.echo(f"{number:6d}  {one_line(reason)}")
    typer.echo(f"{len(found):6d}  in all")


def _described(entry: "Entry", contents: "Contents") -> Iterator[str]:
    from services.account.quarantine import unpacked

    facts = entry.as_json()
    for name, value in (facts | {"at": _when(entry.at)}).items():
        yield f"{name + ':':16s}{one_line(str(value))}"
    if contents.digest is not None:
        yield f"{'blob:':16s}{contents.digest}"
    yield f"{'now:':16s}{one_line(contents.error) if contents.error else 'it can be read'}"
    yield ""
    values = contents.message.model_dump() if contents.message else unpacked(contents.payload)
    if isinstance(values, dict):
        yield from _laid_out(values)
    if contents.message is None:
        yield from _dumped(contents.payload)


def _laid_out(value: Any, indent: str = "") -> Iterator[str]:
    """Nested values, one a line, long ones shortened."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for position, (name, item) in enumerate(items):
        if position == _SHOWN_ITEMS and not isinstance(value, dict):
            yield f"{indent}... {len(value) - position} more"
            return
        if isinstance(item, dict | list | tuple) and item and not _is_plain(item):
            yield f"{indent}{one_line(str(name))}:"
            yield from _laid_out(item, indent + "  ")
        else:
            yield f"{indent}{one_line(str(name))}: {_in_words(item)}"


def _is_plain(item: Any) -> bool:
    return not isinstance(item, dict) and all(isinstance(each, int | float) for each in item)


def _in_words(item: Any) -> str:
    if isinstance(item, bytes):
        return f"{len(item)} bytes {item[:24].hex(' ')}"
    if hasattr(item, "tolist"):
        return f"{len(item)} of {item.dtype}: {_shortened(str(item.tolist()), 120)}"
    return one_line(_shortened(str(item), _LONGEST_TEXT))


def _dumped(payload: bytes) -> Iterator[str]:
    """The head of a payload as a hex dump."""
    yield f"the first {min(len(payload), _DUMPED_BYTES)} of {len(payload)} bytes:"
    for start in range(0, min(len(payload), _DUMPED_BYTES), 16):
        row = payload[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{start:08x}  {row.hex(' '):47s}  {text}"


def _run(
    path: Path, overrides: list[str] | None, work: "Callable[[Bus, RunConfig], Awaitable[int]]", changes: bool = False
) -> None:
    sys.exit(asyncio.run(_with_bus(loaded(path, overrides).config, work, changes)))


async def _with_bus(config: RunConfig, work: "Callable[[Bus, RunConfig], Awaitable[int]]", changes: bool) -> int:
    from bus.permissions import Role
    from services.runtime.bus_access import join_for_reading

    bus, server = await join_for_reading(config, "quarantine", Role.OPERATOR if changes else Role.READER)
    try:
        return await work(bus, config)
    finally:
        await bus.close()
        if server is not None:
            await server.stop()


def _refused(words: str) -> int:
    print(f"error: {words}", file=sys.stderr)
    return 2


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"

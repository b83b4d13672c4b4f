"""The experience stream in a person's hands: `trinity export`, `import`, `rescore` and `view`."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from bus.port import Bus
from services.cli.options import ConfigOption, PluginOption, SetOption, loaded
from services.config.tree import RunConfig

FromOption = Annotated[int | None, typer.Option("--from-sequence", help="First stream sequence.")]
ToOption = Annotated[int | None, typer.Option("--to-sequence", help="Last stream sequence; by default the newest.")]
FromStepOption = Annotated[int | None, typer.Option("--from-step", help="What checkpoint global_step_N has not seen.")]
ToStepOption = Annotated[int | None, typer.Option("--to-step", help="Up to what checkpoint global_step_N holds.")]
FromTimeOption = Annotated[
    str | None, typer.Option("--from-time", help="Stored at or after: 2026-08-01T12:30:00, or seconds since the epoch.")
]
ToTimeOption = Annotated[str | None, typer.Option("--to-time", help="Stored at or before.")]
AsOption = Annotated[str, typer.Option("--as", help="The new run: <name>, or <project>/<name>.", show_default=False)]
AppendOption = Annotated[
    bool, typer.Option("--append", help="Add what is missing to a run that has experiences already.")
]

_TELL_S = 2.0


def export(
    config: ConfigOption,
    out: Annotated[Path, typer.Option("--out", "-o", help="The parquet file to write.", show_default=False)],
    from_step: FromStepOption = None,
    from_sequence: FromOption = None,
    from_time: FromTimeOption = None,
    to_step: ToStepOption = None,
    to_sequence: ToOption = None,
    to_time: ToTimeOption = None,
    set_: SetOption = None,
) -> None:
    """Write the experience stream of a run, running or over, as a parquet file: one row for each experience.

    A task that was abandoned has a row too (`kind` is `abandoned`), so that `trinity import` makes the same stream.
    """
    from services.replay.span import Part, place

    chosen = loaded(config, set_).config
    part = Part(place("from", from_step, from_sequence, from_time), place("to", to_step, to_sequence, to_time))

    async def work(bus: Bus) -> None:
        from bus.subjects import Stream
        from services.account.table import write_parquet
        from services.replay.span import resolved
        from services.trainer.checkpoints import checkpoints

        span = await resolved(part, checkpoints(chosen.run_dir), bus.outlines(Stream.EXPERIENCES))
        number = await write_parquet(bus, out, span.first, span.last, _telling("experiences written"))
        typer.echo(f"{number} experiences written to {out}")

    asyncio.run(_with_bus(chosen, work))


def import_(
    file: Annotated[
        str, typer.Argument(help="A file that `trinity export` has written, or a store that a run has filled.")
    ],
    config: ConfigOption,
    as_: AsOption,
    append: AppendOption = False,
    set_: SetOption = None,
) -> None:
    """Publish stored experiences into the experience stream of a new run, in order, each experience once."""
    from services.replay.opening import as_run

    asyncio.run(_import(file, as_run(loaded(config, set_).config, as_), append))


def rescore(
    config: ConfigOption,
    as_: AsOption,
    reward: Annotated[str, typer.Option("--reward", help="The reward function's name.", show_default=False)],
    reward_args: Annotated[
        list[str] | None, typer.Option("--reward-args", help="An argument of it: with_think=true. May be repeated.")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--source", help="The run to score anew; by default the configuration's own.")
    ] = None,
    append: AppendOption = False,
    from_step: FromStepOption = None,
    from_sequence: FromOption = None,
    from_time: FromTimeOption = None,
    to_step: ToStepOption = None,
    to_sequence: ToOption = None,
    to_time: ToTimeOption = None,
    plugin_dir: PluginOption = None,
    set_: SetOption = None,
) -> None:
    """Score a past stream by another reward function, into the stream of a new run: `trinity replay` trains on it.

    The true answers come from the tasksets of the configuration, by taskset and row.
    """
    from services.replay.opening import as_run
    from services.replay.rescoring import reward_arguments
    from services.replay.span import Part, place

    chosen = loaded(config, set_, plugin_dir).config
    part = Part(place("from", from_step, from_sequence, from_time), place("to", to_step, to_sequence, to_time))
    arguments = reward_arguments(reward_args or ())
    source_config = as_run(chosen, source) if source else chosen
    asyncio.run(_rescore(chosen, source_config, as_run(chosen, as_), part, reward, arguments, append))


def view(
    config: ConfigOption,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many experiences.")] = 8,
    from_sequence: FromOption = None,
    to_sequence: ToOption = None,
    store: Annotated[
        str | None,
        typer.Option("--store", help="A database (sqlite:///FILE.db) or a file, not the stream."),
    ] = None,
    set_: SetOption = None,
) -> None:
    """Print experiences readably: prompt, response and reward."""
    chosen = loaded(config, set_).config
    if store is not None:
        _view_store(store, chosen.run_name, limit, from_sequence or 1, to_sequence)
        return

    async def work(bus: Bus) -> None:
        from services.account.table import rows

        shown = 0
        async for item in rows(bus, from_sequence or 1, to_sequence):
            if shown == limit:
                return
            shown += 1
            typer.echo(_readable(item))
        if shown == 0:
            typer.echo("no experiences there")

    asyncio.run(_with_bus(chosen, work))


def _view_store(path: str, run: str, limit: int, first: int, last: int | None) -> None:
    """The experiences of `run` in a database, or all of a file."""
    from services.account.table import SAMPLED
    from services.store.build import stored_rows
    from services.store.place import place_of

    place = place_of(path)
    items = stored_rows(place, run if place.kind == "sql" else None, first)
    within = itertools.takewhile(lambda item: last is None or item["sequence"] <= last, items)
    shown = 0
    for item in itertools.islice((item for item in within if item["kind"] == SAMPLED), limit):
        shown += 1
        typer.echo(_readable(item))
    if shown == 0:
        typer.echo("no experiences there")


def add_to(app: typer.Typer) -> None:
    app.command()(export)
    app.command("import")(import_)
    app.command()(rescore)
    app.command()(view)


async def _import(file: str, target: RunConfig, append: bool) -> None:
    from services.replay.carrying import carry, check_room
    from services.replay.opening import target_of
    from services.store.build import stored_answers
    from services.store.place import place_of

    place = place_of(file)
    answers = (answer for _, answer in stored_answers(place, target.run_name))
    first = next(answers, None)  # what is no store is told before anything is made
    async with target_of(target) as bus:
        already = await check_room(bus, append)
        every = itertools.chain([] if first is None else [first], answers)
        _say(await carry(bus, _one_by_one(every), already, _telling("experiences imported")), bus.run)


async def _rescore(
    config: RunConfig,
    source_config: RunConfig,
    target: RunConfig,
    part: Any,
    reward: str,
    arguments: dict[str, Any],
    append: bool,
) -> None:
    from bus.subjects import Stream
    from services.replay.carrying import carry, check_room
    from services.replay.opening import source_of, target_of
    from services.replay.replaying import COPY, checkpoints_of
    from services.replay.rescoring import check_rows, rescored_of, rescorer_of
    from services.replay.span import resolved

    rescorer = rescorer_of(config, reward, arguments)
    async with source_of(source_config, target.run_dir / COPY) as source:
        span = await resolved(part, await checkpoints_of(source), source.bus.outlines(Stream.EXPERIENCES))
        total = await check_rows(source.bus, span, rescorer)
        async with target_of(target) as bus:
            already = await check_room(bus, append)
            tell = _telling(f"of {total} experiences scored")
            _say(await carry(bus, rescored_of(source.bus, span, rescorer, bus.run), already, tell), bus.run)


def _say(carried: Any, run: str) -> None:
    there = f", {carried.already} answers were there already" if carried.already else ""
    typer.echo(
        f"{carried.experiences} experiences in {carried.groups} groups and {carried.abandoned} abandoned tasks are in "
        f"run {run}{there}"
    )


async def _one_by_one(answers: Any) -> AsyncIterator[Any]:
    """What a blocking iterator gives, read in a thread."""
    end = object()
    while (answer := await asyncio.to_thread(next, answers, end)) is not end:
        yield answer


def _telling(what: str) -> Callable[[int], None]:
    """Says from time to time how many have been dealt with."""
    said_at = time.monotonic()

    def tell(number: int) -> None:
        nonlocal said_at
        if time.monotonic() - said_at > _TELL_S:
            said_at = time.monotonic()
            typer.echo(f"{number} {what}", err=True)

    return tell


def _readable(item: dict[str, object]) -> str:
    versions = sorted({int(version) for version in item["token_versions"]})  # type: ignore[attr-defined]
    head = (
        f"── {item['sequence']}.{item['position']}  task {item['task_id']}  {item['explorer']}  "
        f"version {', '.join(map(str, versions))}  reward {item['reward']}"
    )
    return f"{head}\nprompt:   {item['prompt_text']!r}\nresponse: {item['response_text']!r}"


async def _with_bus(config: RunConfig, work: Callable[[Bus], Awaitable[None]]) -> None:
    from services.runtime.bus_access import join_for_reading

    bus, server = await join_for_reading(config, "reader")
    try:
        await work(bus)
    finally:
        await bus.close()
        if server is not None:
            await server.stop()

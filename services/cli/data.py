"""The experience stream in a person's hands: `trinity export` and `trinity view`."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import typer

from bus.port import Bus
from services.cli.options import ConfigOption, SetOption, loaded
from services.config.tree import RunConfig

FromOption = Annotated[int, typer.Option("--from-sequence", help="First stream sequence.")]
ToOption = Annotated[int | None, typer.Option("--to-sequence", help="Last stream sequence; by default the newest.")]


def export(
    config: ConfigOption,
    out: Annotated[Path, typer.Option("--out", "-o", help="The parquet file to write.", show_default=False)],
    from_sequence: FromOption = 1,
    to_sequence: ToOption = None,
    set_: SetOption = None,
) -> None:
    """Write the experience stream of a run, running or over, as a parquet file: one row for each experience."""

    async def work(bus: Bus) -> None:
        from services.account.table import write_parquet

        number = await write_parquet(bus, out, from_sequence, to_sequence)
        typer.echo(f"{number} experiences written to {out}")

    asyncio.run(_with_bus(loaded(config, set_).config, work))


def view(
    config: ConfigOption,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many experiences.")] = 8,
    from_sequence: FromOption = 1,
    to_sequence: ToOption = None,
    set_: SetOption = None,
) -> None:
    """Print experiences readably: prompt, response and reward."""

    async def work(bus: Bus) -> None:
        from services.account.table import rows

        shown = 0
        async for item in rows(bus, from_sequence, to_sequence):
            if shown == limit:
                return
            shown += 1
            typer.echo(_readable(item))
        if shown == 0:
            typer.echo("no experiences there")

    asyncio.run(_with_bus(loaded(config, set_).config, work))


def add_to(app: typer.Typer) -> None:
    app.command()(export)
    app.command()(view)


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

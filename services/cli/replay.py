"""`trinity replay`: a new run from a past stream, or the proof that a run can be made again bit by bit."""

import asyncio
from typing import Annotated

import typer

from services.cli.data import FromOption, FromStepOption, FromTimeOption, ToOption, ToStepOption, ToTimeOption
from services.cli.options import ConfigOption, SetOption, available, loaded


def replay(
    config: ConfigOption,
    source: Annotated[
        str | None, typer.Option("--source", help="The run to replay; by default the configuration's own.")
    ] = None,
    as_: Annotated[
        str | None, typer.Option("--as", help="The new run's name; by default <source>-replay, numbered.")
    ] = None,
    from_step: FromStepOption = None,
    from_sequence: FromOption = None,
    from_time: FromTimeOption = None,
    to_step: ToStepOption = None,
    to_sequence: ToOption = None,
    to_time: ToTimeOption = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="With --from-step: begin from the configured model, not the checkpoint.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on while the source lives: a shadow trainer.")] = False,
    live: Annotated[bool, typer.Option("--live", help="At the pace at which the original was made.")] = False,
    max_kl: Annotated[
        float | None, typer.Option("--max-kl", help="|ppo_kl| above which a step is told as off-policy (0.1).")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Train the same run again, and compare the weights bit by bit.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="With --verify: keep the scratch run.")] = False,
    set_: SetOption = None,
) -> None:
    """Train a new run from the experience stream of a past or present one, which stays as it is.

    The configuration is that of the new run: another seed, learning rate, algorithm or model of the same tokenizer.
    `--from-step` begins from that checkpoint of the source, the other places from the configured model.
    """
    from rich.console import Console

    from services.replay.replaying import Wish
    from services.replay.span import WHOLE, Part, place

    chosen = available(loaded(config, set_))
    if verify:
        others = (source, as_, from_sequence, from_time, to_sequence, to_time, max_kl)
        if any(value is not None for value in others) or fresh or follow or live:
            raise typer.BadParameter(
                "takes no other options than --from-step, --to-step, --keep", param_hint="--verify"
            )
        raise typer.Exit(asyncio.run(_verify(chosen, from_step, to_step, keep)))
    part = Part(place("from", from_step, from_sequence, from_time), place("to", to_step, to_sequence, to_time))
    if follow and part.end != WHOLE.end:
        raise typer.BadParameter("reads on as long as the source lives: leave out --to-...", param_hint="--follow")
    from services.replay.replaying import replay as replay_run

    wish = Wish(source, as_, part, fresh, follow, live, max_kl)
    raise typer.Exit(asyncio.run(replay_run(chosen, wish, Console())))


def add_to(app: typer.Typer) -> None:
    app.command()(replay)


async def _verify(config, from_step: int | None, to_step: int | None, keep: bool) -> int:  # type: ignore[no-untyped-def]
    from rich.console import Console

    from services.replay.verifying import verify

    findings = await verify(config, from_step, to_step, keep, Console())
    for finding in findings:
        typer.echo(str(finding))
    identical = sum(finding.is_identical for finding in findings)
    is_proven = bool(findings) and identical == len(findings)
    typer.echo(f"{identical} of {len(findings)} are bit-identical" + ("" if is_proven else ": the replay differs"))
    return 0 if is_proven else 1

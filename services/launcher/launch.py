"""One run on this machine, from the first process to the summary."""

import asyncio
import contextlib
import json
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog
import yaml
from rich.console import Console

from bus.errors import BusError
from bus.permissions import Role
from bus.port import Bus
from bus.server import LocalServer
from schemas.state import RunDeclared, TrainProgress
from services.account.replayed import replay_lines, summarize_replay, trained_again
from services.account.rows import rows_lines, summarize_rows
from services.account.snapshot import snapshot
from services.account.summary import summarize
from services.config.derivation import explain_gpus
from services.config.errors import ConfigError, Problem
from services.config.secrets import shareable
from services.config.tree import RunConfig
from services.launcher.child import Child, ChildFailed
from services.launcher.plans import plans
from services.launcher.schedule import with_schedule
from services.launcher.view import watch
from services.runtime.bus_access import forget_address, join, known_url, leave_address, local_server
from services.runtime.context import LAUNCHED_AT
from services.runtime.durable import write_file
from services.runtime.keys import DECLARED, TRAIN

log = structlog.get_logger()

CONFIG_FILE = "config.yaml"
SUMMARY_FILE = "summary.json"
BENCH_FILE = "bench.json"
NOW = "%Y%m%d%H%M%S"
"""How the time is written in the name of a run that begins anew."""
_DRAIN_S = 120.0
_BUS_POLL_S = 0.5
_HEADWAY_S = 5.0
_SUMMARY_S = 60.0
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


def prepared(config: RunConfig) -> RunConfig:
    """The run to start: under another name where the directory is in use and the run is not to be continued."""
    if config.continue_from_checkpoint or config.mode not in ("both", "train") or not is_used(config.run_dir):
        return config
    if not config.is_whole:
        key = "continue_from_checkpoint"
        raise ConfigError(
            str(config.run_dir),
            [Problem(key, f"{key}=false, but the run has begun here: set it to true, or choose another name")],
        )
    name = f"{config.name}_{time.strftime(NOW)}"
    log.info("run_renamed", name=name, reason=f"{config.run_dir} is in use, and continue_from_checkpoint is false")
    return config.model_copy(update={"name": name})


async def launch(config: RunConfig, console: Console, from_step: int | None = None) -> int:
    """Start the services of `config.mode`, show progress until they end, and write the summary. With `from_step`, the
    trainer first goes back to that step.

    Returns the exit status: 0 for a finished run, 1 when a service failed for good, 130 when it was interrupted.
    """
    started_at = time.time()
    config.run_dir.mkdir(parents=True, exist_ok=True)
    config = await asyncio.to_thread(with_schedule, config)
    for line in explain_gpus(config):
        console.print(line, highlight=False, soft_wrap=True)
    server = await _own_bus(config)
    try:
        bus = await join(config, "launcher")
        await _declare(config, bus)
        if from_step is not None:
            await _go_back(config, from_step)
        status = await _supervised(config, bus, server, console)
        _off_interrupt()
        if config.mode not in ("explore", "serve") and config.cluster.node_rank == 0:
            await _summarize_in_time(config, bus, started_at, console, None if status == 0 else _SUMMARY_S)
        await bus.close()
        return status
    finally:
        if server is not None:
            await server.stop()
            forget_address(config.run_dir)
        _off_interrupt()


async def _own_bus(config: RunConfig) -> LocalServer | None:
    """A bus for this run alone, when it is whole on this machine and none is configured."""
    if not config.is_whole or known_url(config) is not None:
        return None
    server = local_server(config)
    await server.start()
    leave_address(config.run_dir, server.url)
    return server


async def _declare(config: RunConfig, bus: Bus) -> None:
    if await bus.get(DECLARED) is None:
        plain = shareable(config)
        declared = RunDeclared(run=bus.run, run_dir=str(config.run_dir), config=plain, declared_at=time.time())
        await bus.put(DECLARED, declared)


async def _go_back(config: RunConfig, step: int) -> None:
    """As the trainer: nobody else may say which trainer's steps count."""
    from services.trainer.committing import CannotResume
    from services.trainer.rewinding import CannotGoBack, go_back

    bus = await join(config, "launcher", Role.TRAINER)
    try:
        frees = config.experience_source == "stream"
        await go_back(bus, config.run_dir, step, frees=frees, uses_again=config.may_reuse)
    except (CannotGoBack, CannotResume) as error:
        raise ConfigError(f"--from-step {step}", [Problem("", str(error))]) from error
    finally:
        await bus.close()


async def _supervised(config: RunConfig, bus: Bus, server: LocalServer | None, console: Console) -> int:
    """Run the children to their end. Ctrl-C or SIGTERM drains them; a second one ends them at once."""
    launched = {LAUNCHED_AT: str(time.time())}
    planned = [replace(plan, environment=plan.environment | launched) for plan in plans(config, _write_config(config))]
    children = [Child(plan, lambda: _trained(bus)) for plan in planned]
    interrupted = _on_interrupt()
    watching = asyncio.create_task(_watch(bus, console))
    keeping = asyncio.create_task(_keep_bus(server))
    running = [asyncio.create_task(child.supervise()) for child in children]
    try:
        if await _ended(running, interrupted):
            return 0
        console.print("stopping: services finish or hand back what they hold (again to stop at once)")
        await _drain(children, interrupted)
        return 130
    except ChildFailed as error:
        console.print("[red]error:[/red]", end=" ")
        console.print(str(error), markup=False, highlight=False, soft_wrap=True)
        await _drain(children, interrupted)
        return 1
    finally:
        for task in (watching, keeping, *running):
            task.cancel()
        await asyncio.gather(watching, keeping, *running, return_exceptions=True)


async def _trained(bus: Bus) -> int:
    """Experiences that the run has trained on; 0 where the bus does not say."""
    try:
        found = await asyncio.wait_for(bus.get(TRAIN), _HEADWAY_S)
    except (TimeoutError, BusError):
        return 0
    return found.message.counts.trained if found and isinstance(found.message, TrainProgress) else 0


async def _ended(running: list[asyncio.Task[None]], interrupted: asyncio.Event) -> bool:
    """Whether all children ended by themselves; False when we were interrupted first."""
    interrupting = asyncio.create_task(interrupted.wait())
    waiting: set[asyncio.Task[Any]] = {*running, interrupting}
    while len(waiting) > 1:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if interrupting in done:
            return False
        for task in done:
            task.result()
    interrupting.cancel()
    return True


async def _drain(children: list[Child], interrupted: asyncio.Event) -> None:
    interrupted.clear()
    stopping: set[asyncio.Task[Any]] = {asyncio.create_task(child.stop(_DRAIN_S)) for child in children}
    again = asyncio.create_task(interrupted.wait())
    while stopping and not again.done():
        done, _ = await asyncio.wait({*stopping, again}, return_when=asyncio.FIRST_COMPLETED)
        stopping -= done
    again.cancel()
    await asyncio.gather(*(child.stop(0.0) for child in children))
    for task in stopping:
        task.cancel()


async def _keep_bus(server: LocalServer | None) -> None:
    """Start our own bus again, on the same port and store, when it dies."""
    while server is not None:
        await asyncio.sleep(_BUS_POLL_S)
        if not server.is_running:
            log.warning("bus_restarting", url=server.url)
            with contextlib.suppress(BusError):
                await server.start()


async def _watch(bus: Bus, console: Console) -> None:
    while True:
        try:
            await watch(console, lambda: snapshot(bus))
        except BusError as error:
            log.warning("view_waits_for_bus", error=str(error))
            await asyncio.sleep(1.0)


def _on_interrupt() -> asyncio.Event:
    interrupted = asyncio.Event()
    for number in _INTERRUPTS:
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    return interrupted


def _off_interrupt() -> None:
    """Nothing runs that would have to be drained: an interrupt ends this process."""
    for number in _INTERRUPTS:
        asyncio.get_running_loop().remove_signal_handler(number)


def _write_config(config: RunConfig) -> Path:
    """The resolved configuration, which every service of this launcher reads.

    Whether the run is continued has been decided by now; a service that is started again goes on in any case.
    """
    is_alone = config.mode == "both" or config.experience_source in ("rows", "store")
    suffix = "" if is_alone else f".{config.mode}-{config.explorer.name}"
    suffix += f".node{config.cluster.node_rank}" if config.cluster.node_rank else ""
    path = config.run_dir / f"{CONFIG_FILE.removesuffix('.yaml')}{suffix}.yaml"
    settled = config.model_dump(mode="json", exclude_unset=True)
    settled |= {"continue_from_checkpoint": True, "checkpoint_job_dir": str(config.run_dir)}
    write_file(path, yaml.safe_dump(settled, sort_keys=False))
    return path


async def _summarize_in_time(
    config: RunConfig, bus: Bus, started_at: float, console: Console, patience_s: float | None
) -> None:
    """The summary of a run that was stopped is not waited for as long as that of one that ended by itself: its bus may
    have been stopped too."""
    try:
        async with asyncio.timeout(patience_s):
            await _summarize(config, bus, started_at, console)
    except TimeoutError:
        text = f"no summary: the bus has not answered within {patience_s:g} s; trinity status tells when it is back"
        console.print(text, highlight=False, soft_wrap=True)


async def _summarize(config: RunConfig, bus: Bus, started_at: float, console: Console) -> None:
    if config.replay is not None:
        summary = await summarize_replay(bus, config.replay, started_at)
        lines = [*replay_lines(summary)]
    elif config.experience_source in ("rows", "store"):
        summary = await summarize_rows(bus, config, started_at)
        lines = [*rows_lines(summary)]
    else:
        summary = await summarize(bus, config, started_at)
        lines = summary_lines(summary)
    path = config.run_dir / (BENCH_FILE if config.mode == "bench" else SUMMARY_FILE)
    write_file(path, json.dumps(summary, indent=2) + "\n")
    for text in lines:
        console.print(text, highlight=False, soft_wrap=True)
    console.print(f"summary: {path}", highlight=False, soft_wrap=True)


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """The summary in a few lines for a person."""
    tasks, experiences, tokens = summary["tasks"], summary["experiences"], summary["tokens"]
    lines = [
        f"{summary['run']}: {summary['phase']} after {summary['steps']} steps in {summary['wall_s']:.0f} s",
        f"tasks: {tasks['released']} released, {tasks['answered']} answered, {tasks['quarantined']} quarantined",
        f"experiences: {experiences['published']} published, {experiences['trained']} trained, "
        + trained_again(experiences)
        + "".join(f"{count} filtered ({rule}), " for rule, count in sorted(experiences["filtered"].items()))
        + f"{experiences['waiting']} waiting, {experiences['duplicates']} duplicates, {experiences['lost']} lost",
        f"tokens: {tokens['sampled']} sampled, {tokens['trained']} trained",
    ]
    if summary["answers_to_truncated_prompts"]:
        lines.append(
            f"prompts: {summary['answers_to_truncated_prompts']} answers were to prompts longer than "
            "model.max_prompt_tokens: nothing is learned from them"
        )
    for evaluation in summary["evaluations"]:
        means = {name: value for name, value in sorted(evaluation["metrics"].items()) if "/mean@" in name}
        scores = ", ".join(f"{name} {value:.3f}" for name, value in means.items())
        lines.append(f"version {evaluation['version']} on {evaluation['taskset']}: {scores}")
    return lines


def is_used(run_dir: Path) -> bool:
    """Whether a run has left something in its directory."""
    return any(run_dir.glob("global_step_*")) or (run_dir / "bus").is_dir()

"""The one place that puts a service together with its real engine or backend."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from schemas.reports import ServiceName
from services.rollout.plugins import load_plugins
from services.runtime.context import Context


async def run_synchronizer(context: Context) -> None:
    from services.synchronizer.plan import plan_of
    from services.synchronizer.service import Synchronizer

    await Synchronizer(context, plan_of(context.config)).run()


async def run_explorer(context: Context) -> None:
    from services.explorer.service import Explorer
    from services.inference.build import build_engine

    _load_plugins(context)
    await Explorer(context, build_engine(context.config)).run()


async def run_evaluator(context: Context) -> None:
    from services.evaluator.service import Evaluator
    from services.inference.build import build_engine

    _load_plugins(context)
    evaluator = Evaluator(context, build_engine(context.config))
    await (evaluator.bench() if context.config.mode == "bench" else evaluator.run())


async def run_trainer(context: Context) -> None:
    from services.trainer.backends.build import build_backend
    from services.trainer.service import Trainer

    await Trainer(context, build_backend(context.config)).run()


async def run_monitor(context: Context) -> None:
    from services.monitor.service import Monitor

    await Monitor(context).run()


SERVICES: dict[ServiceName, Callable[[Context], Awaitable[None]]] = {
    "synchronizer": run_synchronizer,
    "explorer": run_explorer,
    "trainer": run_trainer,
    "evaluator": run_evaluator,
    "monitor": run_monitor,
}


def _load_plugins(context: Context) -> None:
    load_plugins([Path(directory) for directory in context.config.plugin_dirs])

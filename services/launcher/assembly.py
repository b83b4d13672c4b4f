"""The one place that puts a service together with its real engine or backend."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from schemas.reports import ServiceName
from services.rollout.plugins import load_own, load_plugins
from services.runtime.context import Context


async def run_synchronizer(context: Context) -> None:
    from services.synchronizer.output import write_output
    from services.synchronizer.plan import plan_of
    from services.synchronizer.service import Synchronizer

    _load_plugins(context)
    plan = plan_of(context.config)
    write_output(context.config, plan.mixture.tasksets)
    await Synchronizer(context, plan).run()


async def run_explorer(context: Context) -> None:
    from services.explorer.service import Explorer
    from services.inference.build import build_auxiliaries, build_engine

    if context.config.mode == "serve":
        from services.explorer.serving.service import Serving

        await Serving(context, build_engine(context.config)).run()
        return
    load_own(context.config)
    await Explorer(context, build_engine(context.config), build_auxiliaries(context.config)).run()


async def run_evaluator(context: Context) -> None:
    from services.evaluator.service import Evaluator
    from services.inference.build import build_auxiliaries, build_engine

    load_own(context.config)
    evaluator = Evaluator(context, build_engine(context.config), build_auxiliaries(context.config))
    await (evaluator.bench() if context.config.mode == "bench" else evaluator.run())


async def run_trainer(context: Context) -> None:
    from services.trainer.backends.build import build_backend
    from services.trainer.service import Trainer

    _load_plugins(context)
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
    """Of services that run no workflow: the dotted paths of workflows are not theirs to import."""
    load_plugins([Path(directory) for directory in context.config.plugin_dirs])

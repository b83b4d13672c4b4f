"""Which services a mode starts on this machine, and where they run."""

from pathlib import Path

from schemas.reports import ServiceName
from services.config.tree import RunConfig
from services.launcher.child import MOST_QUICK_FAILURES, ChildPlan
from services.launcher.devices import VISIBLE, devices, of_this_node


def plans(config: RunConfig, config_path: Path) -> list[ChildPlan]:
    """The services of `config.mode`, in the order in which they are started."""
    explorers = [_numbered(config.explorer.name, number) for number in range(config.explorer.rollout_model.engine_num)]
    evaluators = [_owned("evaluator", config)] if config.eval_tasksets else []
    names: dict[str, list[tuple[ServiceName, str]]] = {
        "both": [
            ("synchronizer", "synchronizer"),
            ("trainer", config.trainer.name),
            *(("explorer", name) for name in explorers),
            *(("evaluator", name) for name in evaluators),
            ("monitor", "monitor"),
        ],
        "explore": [
            ("synchronizer", _owned("synchronizer", config)),
            *(("explorer", name) for name in explorers),
            *(("evaluator", name) for name in evaluators),
        ],
        "serve": [
            ("synchronizer", _owned("synchronizer", config)),
            *(("explorer", name) for name in explorers),
        ],
        "train": [("trainer", config.trainer.name), ("monitor", "monitor")],
        "bench": [("evaluator", "evaluator")],
    }
    log_dir = Path(config.log.save_dir) if config.log.save_dir else config.run_dir / "log"
    chosen = names[config.mode]
    visible = devices(config, chosen)
    return [
        ChildPlan(
            service,
            name,
            config_path,
            log_dir / f"{name}.log",
            {VISIBLE: visible[name]} if name in visible else {},
            _most_failures(service, config),
        )
        for service, name in of_this_node(config, chosen)
    ]


def _most_failures(service: ServiceName, config: RunConfig) -> int:
    """A task that ends its explorer each time does so `max_deliver` times, which is no reason to end the run."""
    return MOST_QUICK_FAILURES + (config.synchronizer.max_deliver if service == "explorer" else 0)


def _numbered(name: str, number: int) -> str:
    return name if number == 0 else f"{name}_{number}"


def _owned(service: str, config: RunConfig) -> str:
    """A name of its own beside each explorer side, of which there may be several in one run."""
    return service if config.mode == "both" else f"{service}-{config.explorer.name}"

"""The one place that chooses the record of a run, and what must be there for it."""

import netrc
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from services.config.tree import RunConfig
from services.monitor.config import MlflowArguments, WandbArguments
from services.monitor.experiment import Experiment
from services.monitor.mlflow import MlflowRecord
from services.monitor.record import Record
from services.monitor.tensorboard import TensorBoardRecord
from services.monitor.wandb import WandbRecord

_WANDB_SERVER = "https://api.wandb.ai"
_WITHOUT_SERVER = ("offline", "disabled", "dryrun")


def directory_of(config: RunConfig) -> Path:
    """Where records that are files lie: a directory of this run alone, since what is in it is written anew."""
    elsewhere = config.monitor.cache_dir
    return (Path(elsewhere) / config.project / config.name if elsewhere else config.run_dir) / "monitor"


def _tensorboard(config: RunConfig, experiment: Experiment) -> Record:
    return TensorBoardRecord(directory_of(config) / "tensorboard")


def _wandb(config: RunConfig, experiment: Experiment) -> Record:
    arguments = WandbArguments.model_validate(config.monitor.monitor_args or {})
    return WandbRecord(experiment, arguments, directory_of(config))


def _mlflow(config: RunConfig, experiment: Experiment) -> Record:
    arguments = MlflowArguments.model_validate(config.monitor.monitor_args or {})
    return MlflowRecord(experiment, arguments, directory_of(config))


RECORDS: dict[str, Callable[[RunConfig, Experiment], Record]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}
EXTRAS = {"tensorboard": "monitor", "wandb": "wandb", "mlflow": "mlflow"}
"""The library of each record is named as the record; this is the extra that installs it."""


def fault(config: RunConfig) -> str | None:
    """What keeps the record from being written, as far as can be found out at once; None where nothing does."""
    kind = config.monitor.monitor_type
    if find_spec(kind) is None:
        return (
            f"monitor.monitor_type={kind}: {kind} is not installed: pip install 'trinity-rft-bus[{EXTRAS[kind]}]'"
            + ("" if kind == "tensorboard" else ", or set monitor.monitor_type=tensorboard")
        )
    if kind == "wandb" and not _wandb_needs_no_key(WandbArguments.model_validate(config.monitor.monitor_args or {})):
        return (
            "monitor.monitor_type=wandb: no API key: export WANDB_API_KEY=<your key> (or run `wandb login`); or export "
            "WANDB_MODE=offline to write files that `wandb sync` sends later; or set monitor.monitor_type=tensorboard"
        )
    return None


def _wandb_needs_no_key(given: WandbArguments) -> bool:
    """Whether wandb has a key, or asks for none."""
    if (given.mode or os.environ.get("WANDB_MODE")) in _WITHOUT_SERVER:
        return True
    named = given.api_key or os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE")
    server = given.base_url or os.environ.get("WANDB_BASE_URL") or _WANDB_SERVER
    return bool(named) or _is_logged_in(urlsplit(server).netloc)


def _is_logged_in(host: str) -> bool:
    """Whether `wandb login` has left a key for `host`."""
    paths = [os.environ.get("NETRC"), "~/.netrc", "~/_netrc"]
    for path in (Path(path).expanduser() for path in paths if path):
        try:
            return netrc.netrc(path).authenticators(host) is not None
        except FileNotFoundError:
            continue
        except (netrc.NetrcParseError, OSError):
            return False
    return False

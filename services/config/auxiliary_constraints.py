"""What must hold of the models beside the policy: judges, reward models, teachers."""

from collections import Counter
from collections.abc import Callable, Iterator

from services.config.errors import Problem
from services.config.tree import RunConfig

KEY = "explorer.auxiliary_models"


def _models_can_be_found(config: RunConfig) -> Iterator[Problem]:
    for place, model in enumerate(config.explorer.auxiliary_models):
        external = model.external_model_config
        if external.enable and not external.model_name:
            key = f"{KEY}[{place}].external_model_config.model_name"
            yield Problem(key, f"{key} is missing: give the name that the server has for the model")
        if not external.enable and not model.model_path and model.engine_type != "fake":
            key = f"{KEY}[{place}].model_path"
            yield Problem(key, f"{key} is missing: give the model, or an external_model_config with enable: true")


def _names_differ(config: RunConfig) -> Iterator[Problem]:
    names = Counter(model.known_as for model in config.explorer.auxiliary_models)
    for name, times in names.items():
        if times > 1:
            yield Problem(KEY, f"{KEY}: {times} models are called {name!r}: give each a name of its own")


def _engines_are_counted(config: RunConfig) -> Iterator[Problem]:
    for place, model in enumerate(config.explorer.auxiliary_models):
        if model.engine_num < 1:
            key = f"{KEY}[{place}].engine_num"
            yield Problem(key, f"{key}={model.engine_num}: use 1 or more")


AUXILIARY_CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    _models_can_be_found,
    _names_differ,
    _engines_are_counted,
)

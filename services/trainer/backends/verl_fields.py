"""The fields of veRL's configuration as installed; `services.config.verl.fields` holds them as data.

`python -m services.trainer.backends.verl_fields` prints that module for the veRL that is installed.
"""

import dataclasses
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

Kind = Literal["bool", "int", "float", "str", "list", "dict", "any"]

_PLAIN: dict[object, Kind] = {bool: "bool", int: "int", float: "float", str: "str", list: "list", tuple: "list"}
_TARGET = "_target_"  # of Hydra: the class to build
_GENERATED = "trainer/config/_generated_ppo_trainer.yaml"


def installed() -> dict[str, dict[str, Kind]]:
    """The kinds of all fields, by the name of the table that holds them."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import (
        FSDPActorConfig,
        FSDPCriticConfig,
        FSDPEngineConfig,
        FSDPOptimizerConfig,
        HFModelConfig,
    )

    return {
        "MODEL": _of_class(HFModelConfig),
        "ENGINE": _of_class(FSDPEngineConfig),
        "OPTIMIZER": _of_class(FSDPOptimizerConfig),
        "CHECKPOINT": _of_class(CheckpointConfig),
        "ACTOR": _of_class(FSDPActorConfig),
        "REFERENCE": _of_section("actor_rollout_ref", "ref"),
        "CRITIC": _of_class(FSDPCriticConfig),
        "TRAINER": _of_section("trainer"),
    }


def source() -> str:
    """The text of `services/config/verl/fields.py`."""
    import verl

    lines = [
        f'"""The fields of the configuration of veRL {verl.__version__}, and their kinds; made by',
        '`python -m services.trainer.backends.verl_fields`."""',
        "",
        f'VERSION = "{verl.__version__}"',
    ]
    for name, fields in installed().items():
        lines += ["", f"{name}: dict[str, str] = {{", *(f'    "{field}": "{kind}",' for field, kind in fields.items())]
        lines.append("}")
    return "\n".join(lines) + "\n"


def _of_class(found: type[Any]) -> dict[str, Kind]:
    hints = get_type_hints(found)
    return {field.name: _kind(hints[field.name]) for field in dataclasses.fields(found) if field.name != _TARGET}


def _of_section(*path: str) -> dict[str, Kind]:
    """Of a section that has no class: by the values that veRL's own file has there."""
    import verl
    import yaml

    tree: Any = yaml.safe_load((Path(verl.__file__).parent / _GENERATED).read_text(encoding="utf-8"))
    for part in path:
        tree = tree[part]
    return {name: _kind_of_value(value) for name, value in tree.items() if name != _TARGET}


def _kind_of_value(value: object) -> Kind:
    """What is interpolated, or null, may be anything."""
    return "any" if isinstance(value, str) and value.startswith("${") else _kind(type(value))


def _kind(hint: Any) -> Kind:
    """One of several kinds may be anything."""
    if get_origin(hint) in (Union, types.UnionType):
        arms = [arm for arm in get_args(hint) if arm is not type(None)]
        return _kind(arms[0]) if len(arms) == 1 else "any"
    plain = get_origin(hint) or hint
    if dataclasses.is_dataclass(plain) or plain is dict:
        return "dict"
    return _PLAIN.get(plain, "any")


if __name__ == "__main__":
    print(source(), end="")  # noqa: T201

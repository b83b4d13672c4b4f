"""What can be converted: a shell script, a command line, or a YAML file of veRL's."""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from services.convert.errors import ConversionError
from services.convert.launches import Launch, launches
from services.convert.row import EVALUATION, GENERATION, PPO, SFT
from services.convert.said import Said, said_by
from services.convert.shell.interpreter import followed

YAML = (".yaml", ".yml")
MEGATRON = "actor_rollout_ref.actor.strategy=megatron"
_WANTED = "a script, a command line behind --, or a YAML file of veRL's"


@dataclass(frozen=True)
class Source:
    """A launch with its name for the reader, and what there is to know about how it was read."""

    name: str
    said: Said
    remarks: tuple[str, ...] = ()


def from_file(path: Path, arguments: Sequence[str], environment: Mapping[str, str], number: int = 1) -> Source:
    """The launch in a file; `arguments` are those of a script, or keys over those of a YAML file.

    Raises:
        ConversionError: there is no such file, or no launch of veRL in it.
    """
    text = _text(path)
    if path.suffix in YAML:
        tree = _tree(text, str(path))
        return Source(str(path), said_by(_kind_of(tree, str(path)), arguments, tree), _composed(tree))
    return _from_script(text, str(path), arguments, environment, number)


def from_arguments(words: Sequence[str], environment: Mapping[str, str]) -> Source:
    """The launch that a command line is; keys alone are those of main_ppo.

    Raises:
        ConversionError: it starts no veRL.
    """
    from services.convert.shell.state import Ran

    found = launches([Ran(tuple(words), 1)])
    if found:
        return _source("the command line", found[0], Path.cwd(), ())
    if all("=" in word for word in words):
        return _source("the command line", Launch("verl.trainer.main_ppo", "ppo", tuple(words), 1), Path.cwd(), ())
    raise ConversionError(f"{' '.join(words)!r} starts no veRL: give python3 -m verl.trainer.main_ppo key=value ...")


def _from_script(text: str, name: str, arguments: Sequence[str], environment: Mapping[str, str], number: int) -> Source:
    state = followed(text, arguments, environment, name)
    found = launches(state.ran)
    if not found:
        raise ConversionError(
            f"{name}: no command in it starts veRL (python3 -m verl.trainer.main_ppo, a recipe's main_..., "
            f"torchrun -m verl.trainer.sft_trainer, main_generation, main_eval): give {_WANTED}"
        )
    if not 1 <= number <= len(found):
        raise ConversionError(f"--launch {number}: {name} starts veRL {len(found)} times: use 1 to {len(found)}")
    launch = found[number - 1]
    remarks = list(state.remarks)
    others = [f"{each.module} in line {each.line}" for each in found if each is not launch]
    if others:
        remarks.append(
            f"only {launch.module} in line {launch.line} is converted, not {', '.join(others)}: see --launch"
        )
    return _source(f"{name}:{launch.line}", launch, Path(name).parent, tuple(remarks))


def _source(name: str, launch: Launch, near: Path, remarks: tuple[str, ...]) -> Source:
    more = list(remarks)
    if not launch.is_veRLs_own:
        more.append(f"{launch.module} is a program of its own: only what its configuration says is converted")
    arguments = list(launch.arguments)
    tree: dict[str, Any] = {}
    if launch.config_name:
        tree = _named_tree(launch, near, more)
        if "megatron" in launch.config_name:
            arguments.insert(0, MEGATRON)
    said = said_by(launch.kind, _with_torchrun(launch, arguments), tree)
    return Source(f"{name} ({launch.module})", said, tuple(more))


def _with_torchrun(launch: Launch, arguments: list[str]) -> list[str]:
    """The GPUs of an SFT run, which torchrun is told."""
    given = {"trainer.nnodes": launch.nodes, "trainer.n_gpus_per_node": launch.processes}
    if launch.kind != SFT:
        return arguments
    named = {argument.partition("=")[0] for argument in arguments}
    return [*(f"{key}={value}" for key, value in given.items() if value and key not in named), *arguments]


def _named_tree(launch: Launch, near: Path, remarks: list[str]) -> dict[str, Any]:
    """The file that `--config-name` names, where it lies beside the script or under the working directory."""
    name = f"{(launch.config_name or '').removesuffix('.yaml')}.yaml"
    where = (launch.config_path or "").replace("${oc.env:PWD}", ".").removeprefix("./")
    if name in ("ppo_trainer.yaml", "ppo_megatron_trainer.yaml", "sft_trainer.yaml", "sft_trainer_engine.yaml"):
        return {}
    for base in (near, Path.cwd(), *near.parents):
        place = base / where / name if not posixpath.isabs(where) else Path(where) / name
        if place.is_file():
            tree = _tree(_text(place), str(place))
            remarks.append(f"{place} is read too (--config-name)")
            remarks.extend(_composed(tree))
            return tree
    remarks.append(f"{name} (--config-name) is not found beside the script: what it says is missing here")
    return {}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        reason = f"there is no such file: give {_WANTED}"
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    except OSError as error:
        reason = f"it cannot be read: {error.strerror}"
    raise ConversionError(f"{path}: {reason}")


def _tree(text: str, name: str) -> dict[str, Any]:
    """A YAML file with its references resolved, where what they name is in the file."""
    try:
        loaded = yaml.safe_load(text)
        document = OmegaConf.create(loaded) if isinstance(loaded, dict) else None
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConversionError(f"{name}: it is not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(document, DictConfig):
        raise ConversionError(f"{name}: it holds no keys: give {_WANTED}")
    return {str(key): _plain(document, key) for key in document}


def _plain(node: Any, key: Any) -> Any:
    """A value with its references resolved; one to what is not there is no value, one to the environment stays."""
    raw = OmegaConf.to_container(node, resolve=False)
    text = raw[key]  # type: ignore[index]
    if isinstance(text, str) and "${oc.env:" in text:
        return text
    try:
        value = node[key]
    except OmegaConfBaseException:
        return None
    if OmegaConf.is_dict(value):
        return {str(name): _plain(value, name) for name in value}
    if OmegaConf.is_list(value):
        return [_plain(value, place) for place in range(len(value))]
    return float(value) if isinstance(value, str) and _is_number(value) else value


def _is_number(text: str) -> bool:
    """Whether YAML's reader took a number such as 1e-6 for a text."""
    try:
        float(text)
    except ValueError:
        return False
    return any(sign in text for sign in "eE") and text[:1] in "0123456789+-."


def _kind_of(tree: Mapping[str, Any], name: str) -> str:
    if "actor_rollout_ref" in tree or "algorithm" in tree:
        return PPO
    data = tree.get("data") or {}
    if "optim" in tree or {"messages_key", "max_length", "micro_batch_size_per_gpu"} & set(data):
        return SFT
    if "rollout" in tree and data:
        return GENERATION
    if data and ("custom_reward_function" in tree or "reward_model_key" in data):
        return EVALUATION
    known = (
        "actor_rollout_ref (ppo_trainer.yaml), optim and model (sft_trainer.yaml), data and rollout (generation.yaml)"
    )
    raise ConversionError(f"{name}: no configuration of veRL's: it has none of {known}")


def _composed(tree: Mapping[str, Any]) -> tuple[str, ...]:
    files = [each for each in tree.get("defaults", ()) if each not in ("_self_", "ppo_trainer")]
    if not files:
        return ()
    return (
        f"the files that `defaults` names are not read: what they say is taken as veRL's default ({len(files)} files)",
    )

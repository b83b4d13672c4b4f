"""Every launch that `to-verl` writes is one that the installed veRL's configuration takes."""

import importlib.util
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from services.config.keys import leaves, split
from services.config.load import load
from services.config.verl.keys import SECTIONS
from services.convert.back import Back, of_tree, taken_back
from services.convert.conversion import converted
from services.convert.overrides import value_of
from services.convert.row import PPO, SFT, Way, spelled_out
from services.convert.sources import from_file
from services.convert.spelled import override, quoted
from services.convert.table import TABLE
from services.convert.table.models import is_handed_on
from services.convert.writing import grown, written

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "configs" / "examples").glob("*.yaml"))
LAUNCHES = Path(__file__).parent / "launches"
ACTOR = "actor_rollout_ref.actor"
ROOTS = {"verl.trainer.main_ppo": "ppo_trainer", "verl.trainer.sft_trainer": "sft_trainer_engine"}


@pytest.fixture(autouse=True)
def _verls_files() -> Iterator[None]:
    hydra = pytest.importorskip("hydra")
    found = importlib.util.find_spec("verl")
    if found is None or found.origin is None:
        pytest.skip("veRL is not installed: its configuration's files are not here")
    directory = Path(found.origin).parent / "trainer" / "config"
    with hydra.initialize_config_dir(str(directory), version_base=None):
        yield


def composed(back: Back) -> DictConfig:
    """veRL's configuration with the overrides of a launch, as a shell hands them to hydra."""
    from hydra import compose

    words = shlex.split(back.command().replace("\\\n", " "))
    return compose(ROOTS[back.module], overrides=words[words.index("-m") + 2 :])


def tree_of(values: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        grown(tree, split(key), value)
    return tree


def selected(config: DictConfig, *keys: str) -> list[Any]:
    return [OmegaConf.select(config, key) for key in keys]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_a_shipped_configuration_becomes_a_launch_that_verl_takes(file: Path) -> None:
    loaded = load(file)
    for each in loaded.stages or (loaded,):
        config = composed(taken_back(each))
        assert config.trainer.project_name == each.config.project
        assert config.trainer.experiment_name == each.config.name


@pytest.mark.parametrize("name", sorted(file.name for file in LAUNCHES.glob("*.sh")))
def test_a_launch_that_went_there_and_back_is_one_that_verl_takes(name: str, tmp_path: Path) -> None:
    found = converted(from_file(LAUNCHES / name, ("8", "/runs/x") if name == "sft.sh" else (), {}).said)
    file = tmp_path / "run.yaml"
    file.write_text(written(found), encoding="utf-8")
    config = composed(taken_back(load(file)))
    assert config.trainer.project_name == found.values["project"]


@pytest.mark.parametrize("kind", [PPO, SFT])
def test_every_key_that_is_handed_on_has_a_place_in_verls_files(kind: str) -> None:
    below: dict[str, Any] = {
        f"{ACTOR}.optim.override_optimizer_config.eps": 1,
        "actor_rollout_ref.model.override_config.attn": 0,
    }
    below |= {f"{ACTOR}.fsdp_config.mixed_precision.param_dtype": "bf16", "critic.model.fsdp_config.param_offload": 1}
    below |= {f"{section}.{name}": 1 for section, names in SECTIONS.items() for name in names}
    keys = {key: value for key, value in below.items() if is_handed_on(key) and _is_leaf(key, below)}
    assert len(keys) > 60
    back = of_tree(tree_of({f"trainer.trainer_config.{key}": value for key, value in keys.items()}), kind)
    assert composed(back) is not None
    told = [key for key, _ in back.left]
    assert bool(told) == (kind == SFT)


def _is_leaf(key: str, others: dict[str, Any]) -> bool:
    return not any(other.startswith(f"{key}.") for other in others)


@pytest.mark.parametrize("kind", [PPO, SFT])
def test_every_row_that_goes_back_names_a_key_of_verls_files(kind: str) -> None:
    from hydra import compose

    one_way = Way.__dataclass_fields__["backward"].default
    rows = [row for row in TABLE if kind in row.kinds and row.way and row.way.backward is not one_way]
    keys = [key for key in (spelled_out(row.verl)[0] for row in rows) if "*" not in key]
    assert len(keys) > 25
    root = {PPO: "ppo_trainer", SFT: "sft_trainer_engine"}[kind]
    assert compose(root, overrides=[override(key, None) for key in dict.fromkeys(keys)]) is not None


def test_the_critics_engine_is_written_where_verl_reads_it() -> None:
    config = composed(taken_back(load(ROOT / "configs" / "examples" / "ppo_example.yaml")))
    given = OmegaConf.load(ROOT / "configs" / "examples" / "ppo_example.yaml").trainer.trainer_config.critic
    assert config.critic.fsdp.param_offload is given.model.fsdp_config.param_offload


def test_the_strategy_is_written_beside_the_engine_whose_section_has_no_say() -> None:
    back = of_tree(tree_of({f"trainer.trainer_config.{ACTOR}.fsdp_config.strategy": "fsdp2"}), PPO)
    assert composed(back).actor_rollout_ref.actor.strategy == "fsdp2"


def test_a_mapping_that_takes_any_name_is_added_to() -> None:
    back = of_tree(
        tree_of({"trainer.trainer_config.actor_rollout_ref.model.override_config.attention_dropout": 0.5}), PPO
    )
    assert "++actor_rollout_ref.model.override_config.attention_dropout=0.5" in back.command()
    assert composed(back).actor_rollout_ref.model.override_config == {"attention_dropout": 0.5}


def test_supervised_fine_tuning_is_said_by_the_keys_of_verls_engine() -> None:
    actor = f"trainer.trainer_config.{ACTOR}"
    back = of_tree(
        tree_of(
            {
                "trainer.trainer_strategy": "fsdp2",
                "trainer.ulysses_sequence_parallel_size": 2,
                "trainer.max_checkpoints_to_keep": 3,
                "algorithm.optimizer.lr_scheduler_type": "cosine",
                "cluster.gpu_per_node": 4,
                f"{actor}.fsdp_config.param_offload": True,
                f"{actor}.fsdp_config.reshard_after_forward": False,
                f"{actor}.optim.num_cycles": 0.25,
                f"{actor}.ppo_micro_batch_size_per_gpu": 2,
                f"{actor}.ppo_infer_max_token_len_per_gpu": 9,
                "trainer.trainer_config.actor_rollout_ref.model.use_liger": True,
                "trainer.trainer_config.critic.optim.lr": 0.1,
            }
        ),
        SFT,
    )
    config = composed(back)
    assert selected(config, "engine.strategy", "engine.ulysses_sequence_parallel_size") == ["fsdp2", 2]
    assert selected(config, "engine.param_offload", "engine.reshard_after_forward") == [True, False]
    assert selected(config, "optim.lr_scheduler_type", "optim.num_cycles") == ["cosine", 0.25]
    assert selected(config, "model.use_liger", "data.micro_batch_size_per_gpu") == [True, 2]
    assert config.trainer.max_ckpt_to_keep == 3
    assert back.command().startswith("torchrun --nnodes=1 --nproc_per_node=4 -m verl.trainer.sft_trainer")
    no_place = "veRL's SFT trainer has no such key"
    assert back.left == (
        (f"{actor}.ppo_infer_max_token_len_per_gpu=9", no_place),
        ("trainer.trainer_config.critic.optim.lr=0.1", no_place),
    )


def test_of_an_sft_run_only_what_was_written_is_told() -> None:
    file = ROOT / "configs" / "examples" / "sft.yaml"
    given = {path[0] for path, _ in leaves(OmegaConf.to_container(OmegaConf.load(file)))}
    back = taken_back(load(file))
    keys = {key.partition("=")[0]: reason for key, reason in back.left}
    assert {split(key)[0] for key in keys} <= given
    assert [key for key in keys if key.startswith(("synchronizer", "algorithm", "model"))] == []
    column = "buffer.trainer_input.experience_buffer.format.prompt_key"
    assert keys[column] == "veRL's SFT data are lists of messages: data.messages_key"


@pytest.mark.parametrize(
    "text",
    ["a=b", "<name>", "it's", 'a "b" \\n', "{{ x }}\n{% y %}", "12", "true", "a,b", "x\\", '\\"', "$HOME `x`", "é"],
)
def test_a_text_reaches_verl_as_it_is(text: str) -> None:
    config = composed(of_tree({"name": text}, PPO))
    assert config.trainer.experiment_name == text
    assert value_of(shlex.split(quoted(text))[0]) == text


def test_dapos_penalty_of_long_responses_goes_back() -> None:
    arguments = {
        "enable_overlong_penalty": True,
        "cache_length": 512,
        "penalty_factor": 0.5,
        "max_response_length": 4096,
    }
    values: dict[str, Any] = {
        f"buffer.explorer_input.tasksets[{place}].reward_fn_args.{name}": value
        for place in (0, 1)
        for name, value in arguments.items()
    }
    values["buffer.explorer_input.default_reward_fn_type"] = "math_dapo_reward"
    values["buffer.explorer_input.tasksets[2].reward_fn_args.cache_length"] = 100
    back = of_tree(tree_of(values), PPO)
    config = composed(back).reward_model
    assert config.reward_manager == "dapo"
    assert config.reward_kwargs == {
        "overlong_buffer_cfg": {"enable": True, "len": 512, "penalty_factor": 0.5},
        "max_resp_len": 4096,
    }
    rewards = "rewards are a custom_reward_function in veRL, written for it"
    assert back.left == (("buffer.explorer_input.tasksets[2].reward_fn_args.cache_length=100", rewards),)


def test_what_all_tasksets_say_alike_is_said_once_and_the_others_are_told() -> None:
    columns = {"tasksets[0]": "question", "tasksets[1]": "question", "eval_tasksets[0]": "question"}
    columns["eval_tasksets[1]"] = "problem"
    values = {f"buffer.explorer_input.{place}.format.prompt_key": name for place, name in columns.items()}
    back = of_tree(tree_of(values), PPO)
    assert back.overrides["data.prompt_key"] == "question"
    assert [key for key, _ in back.left] == ["buffer.explorer_input.eval_tasksets[1].format.prompt_key=problem"]

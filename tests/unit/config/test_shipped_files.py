"""Every configuration file that is shipped can be read, and keeps the meaning that the documents give it."""

from pathlib import Path

import pytest

from services.config.availability import notices, unavailable
from services.config.load import load
from services.config.tree import RunConfig
from services.store.place import Place
from services.store.sinks import sinks

CONFIGS = Path(__file__).parents[3] / "configs"
FILES = sorted(CONFIGS.rglob("*.yaml"))
VARIABLES = (
    "TRINITY_CHECKPOINT_ROOT_DIR",
    "TRINITY_MODEL_PATH",
    "TRINITY_TASKSET_PATH",
    "TRINITY_BUS_URL",
    "TRINITY_PLUGIN_DIRS",
    "TRINITY_LOG_LEVEL",
    "TRINITY_LOG_DIR",
)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", "/home/someone")


def example(name: str) -> RunConfig:
    return load(CONFIGS / "examples" / f"{name}.yaml").config


def test_there_are_files_to_test() -> None:
    assert len(FILES) >= 11


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_file_passes_every_check(path: Path) -> None:
    assert load(path).config.model.model_path


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_resolved_file_survives_json_unchanged(path: Path) -> None:
    config = load(path).config
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    "name",
    [
        "quickstart",
        "async/trainer",
        "async/explorer",
        "async/explorer_new",
        "examples/async_trainer",
        "examples/async_explorer",
        "examples/async_explorer_new",
    ],
)
def test_what_this_version_promises_can_run(name: str) -> None:
    assert unavailable(load(CONFIGS / f"{name}.yaml").config) == []


def test_the_asynchronous_trio_is_one_run() -> None:
    trio = [example(f"async_{part}") for part in ("trainer", "explorer", "explorer_new")]
    assert [config.mode for config in trio] == ["train", "explore", "explore"]
    assert {config.run_name for config in trio} == {"<project_name>/<experiment_name>"}
    assert {config.train_batch_size for config in trio} == {512}
    assert {config.batch_size for config in trio} == {64}
    assert {config.synchronizer.sync_interval for config in trio} == {10}
    assert [config.explorer.name for config in trio] == ["explorer", "explorer", "explorer_new"]
    assert [config.explorer.rollout_model.engine_num for config in trio[1:]] == [4, 8]


def test_the_asynchronous_trainer_learns_at_the_rate_that_is_written_without_a_point() -> None:
    assert example("async_trainer").algorithm.optimizer.lr == 1e-6


def test_an_sqlite_path_is_a_store_of_the_run_that_the_trainers_side_writes() -> None:
    assert sinks(example("async_trainer")) == [Place("sql", "sqlite:///gsm8k.db")]
    assert notices(example("async_trainer")) == []
    (notice,) = notices(example("async_explorer"))
    assert "experience_buffer.path=sqlite:///gsm8k.db is written by the run's monitor" in notice


def test_the_ppo_example_keeps_its_keys() -> None:
    config = example("ppo_example")
    assert config.model.critic_model_path == "/home/someone/models/Qwen2-7B-Instruct"
    assert [taskset.name for taskset in config.tasksets] == ["gsm8k", "math"]
    assert [taskset.split for taskset in config.eval_tasksets] == ["test", "test"]
    assert config.explorer.auxiliary_models[0].model_path == "/home/someone/models/FsfairX-LLaMA3-RM-v0.1"
    assert (config.explorer_gpus, config.trainer_ranks) == (4, 4)
    actor = config.trainer.trainer_config["actor_rollout_ref"]["actor"]
    assert actor["ppo_micro_batch_size_per_gpu"] == 16
    assert config.trainer.trainer_config["critic"]["optim"]["lr"] == 1e-5


def test_the_grpo_example_evaluates_only_versions_that_are_announced() -> None:
    loaded = load(CONFIGS / "examples" / "grpo_example.yaml")
    assert loaded.config.explorer.eval_interval == 8
    assert loaded.origins["explorer.eval_interval"] == "derived: 5 rounded up to a multiple of sync_interval"
    assert any("explorer.eval_interval=5" in note for note in loaded.notes)


def test_the_tinker_example_keeps_its_keys() -> None:
    config = example("tinker")
    assert config.model.tinker.base_model == "meta-llama/Llama-3.2-3B"
    assert config.group == "alignment-tinker"
    assert (config.model.custom_chat_template or "").startswith("{{- bos_token }}\n")
    assert config.rollout_model.chat_template == config.model.custom_chat_template
    assert "not available yet: model.tinker.enable=true (set false instead)" in unavailable(config)


def test_the_lora_example_keeps_its_keys() -> None:
    config = example("verl_lora")
    (lora,) = config.model.lora_configs or []
    assert (lora.name, lora.lora_rank, lora.lora_alpha) == ("lora", 32, 32)
    assert (config.max_prompt_tokens, config.max_response_tokens, config.max_model_len) == (1024, 2048, 3072)


def test_the_quickstart_samples_freely_in_training_and_greedily_in_evaluation() -> None:
    config = load(CONFIGS / "quickstart.yaml").config
    training = config.generation(config.tasksets[0])
    evaluation = config.generation(config.eval_tasksets[0])
    assert (training.temperature, training.max_tokens, training.n, training.stop) == (1.0, 4, 8, ["\n"])
    assert (evaluation.temperature, evaluation.max_tokens, evaluation.n, evaluation.stop) == (0.0, 4, 1, ["\n"])

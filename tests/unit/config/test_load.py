"""Reading: what a file, the environment and overrides say, where each value came from, and what is refused."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from services.config.errors import ConfigError
from services.config.load import Loaded, load

Load = Callable[..., Loaded]
Refuse = Callable[..., list[str]]

ROOT = Path(__file__).parents[3]


def test_every_value_has_an_origin(loaded: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEED", "3e-5")
    monkeypatch.setenv("TRINITY_CHECKPOINT_ROOT_DIR", "/kept/here")
    monkeypatch.setenv("TRINITY_BUS_URL", "nats://elsewhere:4222")
    result = loaded(
        "explorer.runner_per_model=32",
        extra="trainer: {save_interval: '${oc.env:EVERY,7}'}\nsynchronizer: {sync_timeout: '${oc.env:SPEED}'}\n",
    )
    assert result.origins["model.model_path"] == "c.yaml:7"
    assert result.origins["buffer.explorer_input.taskset.path"] == "c.yaml:13"
    assert result.origins["explorer.runner_per_model"] == "override"
    assert result.origins["trainer.save_interval"] == "c.yaml:14"
    assert result.origins["synchronizer.sync_timeout"] == "environment SPEED"
    assert result.origins["checkpoint_root_dir"] == "environment TRINITY_CHECKPOINT_ROOT_DIR"
    assert result.origins["bus.url"] == "environment TRINITY_BUS_URL"
    assert result.origins["synchronizer.sync_offset"] == "default"
    assert result.origins["buffer.train_batch_size"] == "derived: batch_size 4 * repeat_times 8"
    assert result.config.trainer.save_interval == 7
    assert result.config.synchronizer.sync_timeout == 3e-5
    assert result.config.run_dir == Path("/kept/here/p/n")
    assert result.config.bus.url == "nats://elsewhere:4222"


def test_what_is_written_wins_over_the_environment(loaded: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_BUS_URL", "nats://elsewhere:4222")
    monkeypatch.setenv("TRINITY_LOG_LEVEL", "warning")
    config = loaded("bus.url=nats://here:4222").config
    assert (config.bus.url, config.log.level) == ("nats://here:4222", "WARNING")


def test_plugin_directories_come_from_the_environment_as_a_list(loaded: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_PLUGIN_DIRS", "one:two")
    assert loaded().config.plugin_dirs == ["one", "two"]


@pytest.mark.parametrize(("written", "value"), [("1e-6", 1e-6), ("2E-5", 2e-5), ("1.0e-05", 1e-5), ("1", 1.0)])
def test_a_learning_rate_is_a_number_however_it_is_written(loaded: Load, written: str, value: float) -> None:
    assert loaded(f"algorithm.optimizer.lr={written}").config.algorithm.optimizer.lr == value
    text = f"model: {{model_path: m}}\nmode: train\nalgorithm: {{optimizer: {{lr: {written}}}}}\n"
    assert loaded(text=text).config.algorithm.optimizer.lr == value


def test_overrides_reach_into_lists_and_the_last_one_wins(loaded: Load) -> None:
    result = loaded(
        "buffer.explorer_input.eval_tasksets=[{name: a, path: a.jsonl}, {name: b, path: b.jsonl}]",
        "buffer.explorer_input.eval_tasksets[1].path=c.jsonl",
        "buffer.explorer_input.eval_tasksets.0.path=d.jsonl",
        "buffer.batch_size=2",
        "buffer.batch_size=3",
    )
    paths = [taskset.path for taskset in result.config.eval_tasksets]
    assert (paths, result.config.batch_size) == (["d.jsonl", "c.jsonl"], 3)
    assert result.origins["buffer.explorer_input.eval_tasksets[1].path"] == "override"


def test_an_empty_section_is_the_default_one(loaded: Load) -> None:
    config = loaded(extra="explorer:\n  rollout_model:\ndata_processor:\n").config
    assert config.explorer.rollout_model.engine_num == 1


def test_a_level_may_be_written_in_small_letters(loaded: Load) -> None:
    assert loaded("log.level=debug").config.log.level == "DEBUG"


def test_all_problems_are_told_at_once_with_their_lines(refused: Refuse) -> None:
    problems = refused(
        "buffer.batch_size=many",
        extra="buffers: {}\ntrainer:\n  sav_interval: 1\n  grad_clip: .nan\nexplorer: 3\n",
    )
    assert sorted(problems) == [
        "buffer.batch_size=many must be a whole number, such as 8  (override)",
        "buffers is not a known key: did you mean buffer?  (c.yaml:14)",
        "explorer=3 must be a section: its keys stand below it, indented  (c.yaml:18)",
        "trainer.grad_clip=nan must be a finite number  (c.yaml:17)",
        "trainer.sav_interval is not a known key: did you mean trainer.save_interval?  (c.yaml:16)",
    ]


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("buffer.total_step", "did you mean buffer.total_steps?"),
        ("trainer.max_staleness", "did you mean synchronizer.max_staleness?"),
        ("explorer.engine_num", "did you mean explorer.rollout_model.engine_num?"),
        ("algorithm.optimizer.learning_rate", "remove it; known here: betas, clip_grad, lr,"),
        (
            "buffer.explorer_input.taskset.format.promt_key",
            "did you mean buffer.explorer_input.taskset.format.prompt_key?",
        ),
        ("syncronizer", "did you mean synchronizer?"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_right_one(refused: Refuse, key: str, advice: str) -> None:
    (problem,) = refused(f"{key}=1")
    assert problem.startswith(f"{key} is not a known key: {advice}")


def test_an_unknown_key_in_a_list_is_named_with_its_index(refused: Refuse) -> None:
    (problem,) = refused("buffer.explorer_input.eval_tasksets=[{name: e, path: e.jsonl, spilt: test}]")
    assert problem == (
        "buffer.explorer_input.eval_tasksets[0].spilt is not a known key: "
        "did you mean buffer.explorer_input.eval_tasksets[0].split?  (override)"
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.save_interval=true", "trainer.save_interval=true must not be true or false"),
        ("buffer.batch_size=4.5", "buffer.batch_size=4.5 must be a whole number, such as 8"),
        ("name=[a]", "name=['a'] must be text"),
        ("explorer.eval_on_startup=perhaps", "explorer.eval_on_startup=perhaps must be true or false"),
        ("explorer.auxiliary_models=x", "explorer.auxiliary_models=x must be a list: one `- ` line for each entry"),
        (
            "synchronizer.sync_method=ncl",
            "synchronizer.sync_method=ncl is not one of checkpoint, memory, nccl: did you mean nccl?",
        ),
        ("nonsense", "the override 'nonsense' is not KEY=VALUE: write for example buffer.batch_size=8"),
    ],
)
def test_a_wrong_value_is_named_with_what_to_write(refused: Refuse, override: str, message: str) -> None:
    assert refused(override) == [f"{message}  (override)"]


def test_an_override_into_a_missing_list_entry_is_refused(refused: Refuse) -> None:
    (missing_list,) = refused("buffer.explorer_input.tasksets[3].path=x")
    assert "buffer.explorer_input.tasksets holds no list to change" in missing_list
    (missing_entry,) = refused("buffer.explorer_input.tasksets=[{path: a}]", "buffer.explorer_input.tasksets[3].path=x")
    assert missing_entry.endswith("cannot be applied: list index out of range  (override)")


def test_a_value_that_must_be_given_is_asked_for(refused: Refuse) -> None:
    assert refused(extra="group: ???\n") == ["group is ???: give it a value  (c.yaml:14)"]
    assert refused("stages=[{mode: train}]") == ["stages[0].stage_name is missing: give it a value"]


def test_every_missing_environment_variable_is_named(refused: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_ONE", raising=False)
    monkeypatch.delenv("NOR_THIS", raising=False)
    problems = refused(extra="group: ${oc.env:NO_SUCH_ONE}\nlog:\n  save_dir: /logs/${oc.env:NOR_THIS}\n")
    needs = "needs the environment variable"
    assert problems == [
        f"group {needs} NO_SUCH_ONE: set it, or write ${{oc.env:NO_SUCH_ONE,DEFAULT}}  (c.yaml:14)",
        f"log.save_dir {needs} NOR_THIS: set it, or write ${{oc.env:NOR_THIS,DEFAULT}}  (c.yaml:16)",
    ]


def test_a_key_given_twice_is_refused_with_both_lines(refused: Refuse) -> None:
    assert refused(extra="name: again\n") == ["name is given twice, first at line 2: remove one of them  (c.yaml:14)"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2\n", "the file is not YAML: expected ',' or ']', but got ':'  (c.yaml:2:2)"),
        (
            "mode: both\n\tname: x\n",
            "the file is not YAML: found character '\\t' that cannot start any token  (c.yaml:2:1)",
        ),
        ("- mode\n- both\n", "the file holds no keys: a configuration is a mapping, such as `mode: both`"),
        ("just words\n", "the file holds no keys: a configuration is a mapping, such as `mode: both`"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused_with_its_line(refused: Refuse, text: str, message: str) -> None:
    assert refused(text=text) == [message]


def test_an_anchor_that_holds_itself_is_refused(refused: Refuse) -> None:
    (problem,) = refused(extra="explorer: &a\n  rollout_model: *a\n")
    assert "nested more than" in problem


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        load("/nowhere/at/all.yaml")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_bytes(b"mode: \xff\n")
    with pytest.raises(ConfigError, match=r"not UTF-8 text \(byte 6\)"):
        load(tmp_path / "c.yaml")


def test_reading_a_configuration_imports_no_engine() -> None:
    heavy = ("torch", "vllm", "ray", "transformers", "datasets", "numpy", "nats")
    code = f"import services.config.show, sys; print([name for name in {heavy!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"

"""`trinity convert verl` and `to-verl` as a person uses them."""

from pathlib import Path

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from services.cli.main import app

LAUNCHES = Path(__file__).parent / "launches"


def trinity(*words: str) -> Result:
    return CliRunner().invoke(app, ["convert", *words])


def test_a_script_becomes_a_file_and_the_rest_is_told(tmp_path: Path) -> None:
    out = tmp_path / "run.yaml"
    result = trinity("verl", str(LAUNCHES / "grpo_dynamic_batches.sh"), "-o", str(out))
    assert result.exit_code == 0
    assert yaml.safe_load(out.read_text(encoding="utf-8"))["algorithm"]["algorithm_type"] == "grpo"
    assert "Where this run differs from veRL's:" in result.stderr
    assert f"{out} is written" in result.stderr
    assert result.stdout == ""


def test_a_command_line_behind_two_dashes() -> None:
    words = ("python3", "-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=grpo", "data.train_batchsize=4")
    result = trinity("verl", "--said-only", "--", *words)
    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout)["algorithm"]["advantage_fn"] == "grpo"
    assert "did you mean data.train_batch_size?" in result.stderr
    assert "# Not known, and left out:" in result.stdout


def test_the_arguments_and_variables_of_a_script() -> None:
    result = trinity("verl", str(LAUNCHES / "sft.sh"), "--", "4", "/runs/sft", "optim.lr=2e-5")
    assert yaml.safe_load(result.stdout)["cluster"] == {"node_num": 1, "gpu_per_node": 4}
    assert "    lr: 2e-5  # optim.lr" in result.stdout
    result = trinity("verl", str(LAUNCHES / "arrays.sh"), "--env", "GPUS=4", "-e", "CLUSTER_NODES=1")
    assert yaml.safe_load(result.stdout)["cluster"] == {"node_num": "${oc.env:CLUSTER_NODES,1}", "gpu_per_node": 4} or (
        yaml.safe_load(result.stdout)["cluster"] == {"node_num": 1, "gpu_per_node": 4}
    )


def test_on_policy_waits_for_every_update() -> None:
    result = trinity("verl", "--on-policy", str(LAUNCHES / "grpo_dynamic_batches.sh"))
    assert yaml.safe_load(result.stdout)["synchronizer"]["sync_offset"] == 0
    assert "sync_offset=1" not in result.stderr


def test_what_the_check_refuses_is_told(tmp_path: Path) -> None:
    script = tmp_path / "one.sh"
    script.write_text("python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo trainer.n_gpus_per_node=1\n")
    result = trinity("verl", str(script))
    assert result.exit_code == 0
    assert "`trinity check` refuses this configuration:" in result.stderr
    assert "algorithm.repeat_times=1 leaves grpo nothing to compare" in result.stderr
    assert "use 2 GPUs or more" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere.sh",), "nowhere.sh: there is no such file"),
        (("nowhere",), "there is no such file"),
        ((), "nothing to convert"),
        (("--", "python3", "train.py"), "starts no veRL"),
        (("--env", "=3", "x.sh"), "write NAME=VALUE"),
        (("--launch", "3", str(LAUNCHES / "sft.sh")), "starts veRL 1 times"),
    ],
)
def test_errors_say_what_to_do(words: tuple[str, ...], said: str) -> None:
    result = trinity("verl", *words)
    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.sh", "echo hello\n", "no command in it starts veRL"),
        ("a.sh", "python3 -m verl.trainer.main_ppo 'data\n", "line 1: a ' is never closed"),
        ("a.yaml", "a: [1\n", "it is not YAML"),
        ("a.yaml", "- 1\n", "it holds no keys"),
        ("a.yaml", "model: {}\n", "no configuration of veRL's"),
    ],
)
def test_files_that_are_no_launch_are_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    result = trinity("verl", str(tmp_path / name))
    assert result.exit_code == 2
    assert said in result.stderr


def test_of_several_launches_one_is_converted(tmp_path: Path) -> None:
    script = tmp_path / "two.sh"
    script.write_text("for n in 4 8; do python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=$n x.y=1; done\n")
    first, second = trinity("verl", str(script)), trinity("verl", "--launch", "2", str(script))
    assert yaml.safe_load(first.stdout)["algorithm"]["repeat_times"] == 4
    assert yaml.safe_load(second.stdout)["algorithm"]["repeat_times"] == 8
    assert "see --launch" in first.stderr


def test_a_named_configuration_beside_the_script_is_read(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "mine.yaml").write_text("data: {max_prompt_length: 77}\ntrainer: {total_epochs: 3}\n")
    script = tmp_path / "run.sh"
    command = "python3 -m verl.trainer.main_ppo --config-path=config --config-name='mine' trainer.total_epochs=5"
    script.write_text(command)
    tree = yaml.safe_load(trinity("verl", str(script)).stdout)
    assert tree["model"]["max_prompt_tokens"] == 77
    assert tree["buffer"]["total_epochs"] == 5
    script.write_text(command.replace("mine", "other"))
    assert "other.yaml (--config-name) is not found" in trinity("verl", str(script)).stderr


def test_a_configuration_becomes_a_launch(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    trinity("verl", str(LAUNCHES / "grpo_dynamic_batches.sh"), "-o", str(config))
    script = tmp_path / "run.sh"
    result = trinity("to-verl", str(config), "-o", str(script))
    assert result.exit_code == 0
    assert "synchronizer.sync_offset=1: veRL's loop takes turns" in result.stderr
    text = script.read_text(encoding="utf-8")
    assert '    data.train_files="${HOME}/data/gsm8k/train.parquet" \\\n' in text
    assert "    data.train_batch_size=1024 \\\n" in text
    again = yaml.safe_load(trinity("verl", str(script)).stdout)
    assert again == yaml.safe_load(config.read_text(encoding="utf-8"))


@pytest.mark.parametrize("command", [("verl", "grpo_dynamic_batches.sh"), ("to-verl", "grpo_example.yaml")])
def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, command: tuple[str, str]) -> None:
    source = {"verl": LAUNCHES, "to-verl": Path(__file__).parents[3] / "configs" / "examples"}[command[0]] / command[1]
    out = tmp_path / "nowhere" / "x.yaml"
    result = trinity(command[0], str(source), "-o", str(out))
    assert result.exit_code == 2
    last = result.stderr.splitlines()[-1]
    assert last == (
        f"error: {out} cannot be written: No such file or directory: name a file in a directory that is there"
    )

"""The right side of hydra's overrides, and the commands that start veRL."""

from typing import Any

import pytest

from services.convert.launches import launches
from services.convert.overrides import override, value_of
from services.convert.shell.interpreter import followed


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("0.", 0.0),
        ("-1", -1),
        ("True", True),
        ("null", None),
        ("None", "None"),
        ("'error'", "error"),
        ("[console,wandb]", ["console", "wandb"]),
        ("[\"console\",'wandb']", ["console", "wandb"]),
        ("['${oc.env:HOME}/a b', 2, [0.5]]", ["${oc.env:HOME}/a b", 2, [0.5]]),
        ("{a: 1, 'b': [x], c: {d: null}}", {"a": 1, "b": ["x"], "c": {"d": None}}),
        ("[]", []),
        ("http://host:80/x", "http://host:80/x"),
        ("0.5_5.0", "0.5_5.0"),
        ("", ""),
    ],
)
def test_a_value_is_read_as_hydra_reads_it(text: str, value: Any) -> None:
    found = value_of(text)
    assert found == value
    assert type(found) is type(value)


def test_the_signs_of_an_override() -> None:
    assert [override(text).sign for text in ("a.b=1", "+a.b=1", "++a.b=1", "~a.b")] == ["", "+", "++", "~"]  # type: ignore[union-attr]
    assert override("--config-name=x") is None
    with pytest.raises(ValueError, match="never closed"):
        override("a.b=[1,2")


@pytest.mark.parametrize(
    ("command", "module", "kind"),
    [
        ("python3 -m verl.trainer.main_ppo a.b=1", "verl.trainer.main_ppo", "ppo"),
        ("python -u -m recipe.dapo.main_dapo a.b=1", "recipe.dapo.main_dapo", "ppo"),
        ("uv run python3 -m verl.trainer.main_ppo_v0 a.b=1", "verl.trainer.main_ppo_v0", "ppo"),
        ("torchrun --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer a.b=1", "verl.trainer.fsdp_sft_trainer", "sft"),
        ("python -m verl.trainer.main_generation a.b=1", "verl.trainer.main_generation", "generation"),
        ("python -m verl.trainer.main_eval a.b=1", "verl.trainer.main_eval", "evaluation"),
        ("python3 /opt/verl/verl/trainer/main_ppo.py a.b=1", "verl.trainer.main_ppo", "ppo"),
        ("ray job submit --no-wait -- python3 -m verl.trainer.main_ppo a.b=1", "verl.trainer.main_ppo", "ppo"),
        ("nohup srun --nodes=2 python3 -m verl.trainer.main_ppo a.b=1 &", "verl.trainer.main_ppo", "ppo"),
        ("python3 train.py data.a=1 trainer.b=2 algorithm.c=3", "train.py", "ppo"),
    ],
)
def test_a_start_of_verl_is_found_in_a_command(command: str, module: str, kind: str) -> None:
    (found,) = launches(followed(command).ran)
    assert (found.module, found.kind) == (module, kind)
    assert found.arguments[0].endswith("=1")


def test_other_commands_start_no_verl() -> None:
    script = "python3 examples/data_preprocess/gsm8k.py --local_dir x\npip install verl\nray start --head\nls a=b c.d=e"
    assert launches(followed(script).ran) == []

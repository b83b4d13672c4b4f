"""What is checked of the models beside the policy before a run starts."""

from collections.abc import Callable

import pytest

from services.config.availability import unavailable
from services.config.constraints import violations
from services.config.load import Loaded

Load = Callable[..., Loaded]
KEY = "explorer.auxiliary_models"


@pytest.mark.parametrize(
    ("models", "key", "words"),
    [
        ("[{engine_num: 1}]", f"{KEY}[0].model_path", "is missing: give the model, or an external_model_config"),
        (
            "[{model_path: a}, {external_model_config: {enable: true}}]",
            f"{KEY}[1].external_model_config.model_name",
            "is missing: give the name that the server has for the model",
        ),
        ("[{model_path: x/judge}, {model_path: y/judge}]", KEY, "2 models are called 'judge': give each a name"),
        ("[{model_path: a, engine_num: 0}]", f"{KEY}[0].engine_num", "engine_num=0: use 1 or more"),
    ],
)
def test_a_model_that_cannot_be_had_is_refused(
    refused: Callable[..., list[str]], models: str, key: str, words: str
) -> None:
    (said,) = refused(f"{KEY}={models}")
    assert key in said
    assert words in said


def test_models_of_all_kinds_are_available(loaded: Load) -> None:
    models = "[{model_path: a}, {external_model_config: {enable: true, model_name: b}}, {engine_type: fake, name: c}]"
    config = loaded(f"{KEY}={models}").config
    assert violations(config) == []
    assert unavailable(config) == []
    assert [model.name for model in config.auxiliary_models] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("{model_path: a, engine_type: sglang}", "engine_type=sglang (set vllm instead)"),
        ("{model_path: a, enable_multimodal: true}", "enable_multimodal=true (leave it out)"),
        ("{model_path: a, enable_lora: true}", "enable_lora=true (leave it out)"),
        ("{model_path: a, tensor_parallel_size: 2}", "tensor_parallel_size=2 on the CPU (set 1 instead)"),
    ],
)
def test_what_a_model_cannot_have_yet_is_told(loaded: Load, model: str, line: str) -> None:
    assert unavailable(loaded(f"{KEY}=[{model}]").config) == [f"not available yet: {KEY}[0].{line}"]

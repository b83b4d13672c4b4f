"""Reward models: found out from their configuration, and asked for the raw score of whole conversations."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.config.tree import RunConfig
from services.inference.architectures import is_classifier
from services.inference.auxiliary import Auxiliaries, AuxiliaryFailed, Defaults, EngineModel
from services.inference.build import build_auxiliaries
from services.inference.fake import FakeEngine
from services.inference.fake_classifier import FakeClassifier
from services.inference.reward_model import ClassifierModel

ASKED = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]


def _directory(root: Path, architecture: str) -> str:
    (root / "config.json").write_text(json.dumps({"architectures": [architecture]}), encoding="utf-8")
    return str(root)


@pytest.mark.parametrize(
    ("architecture", "expected"), [("LlamaForSequenceClassification", True), ("LlamaForCausalLM", False)]
)
def test_a_models_own_configuration_says_whether_it_is_a_classifier(
    tmp_path: Path, architecture: str, expected: bool
) -> None:
    assert is_classifier(_directory(tmp_path, architecture)) is expected


def test_what_is_not_here_may_be_either(tmp_path: Path) -> None:
    assert is_classifier(str(tmp_path)) is None
    assert is_classifier("some-organisation/some-model-that-nobody-has") is None
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    assert is_classifier(str(tmp_path)) is None


async def test_the_score_is_of_the_whole_conversation_by_the_models_own_template() -> None:
    closed = "user: 2+2?\nassistant: 4\n"
    model = ClassifierModel("rm", FakeClassifier(scores={closed: 1.5, "user": -9.0}), Defaults())
    assert await model.score(ASKED) == 1.5
    assert await model.score(ASKED[:1]) == -9.0
    assert model.is_classifier
    await model.stop()
    assert await model.score(ASKED) == 1.5  # whoever asks starts it


async def test_a_conversation_without_room_and_a_classifier_of_many_labels_are_refused_by_name() -> None:
    short = ClassifierModel("rm", FakeClassifier(), Defaults(max_model_len=10))
    with pytest.raises(AuxiliaryFailed, match="'rm': a conversation of 24 tokens, where max_model_len=10"):
        await short.score(ASKED)
    topics = ClassifierModel("topics", FakeClassifier(labels=3), Defaults())
    with pytest.raises(AuxiliaryFailed, match="'topics': it has 3 labels, and a reward model has one"):
        await topics.score(ASKED)


async def test_each_kind_of_model_refuses_what_the_other_does() -> None:
    scores, answers = ClassifierModel("rm", FakeClassifier(), Defaults()), EngineModel("j", FakeEngine(), Defaults())
    for asked in (scores.chat(ASKED), scores.logprobs([1], [2])):
        with pytest.raises(AuxiliaryFailed, match="'rm': it is a classifier"):
            await asked
    with pytest.raises(AuxiliaryFailed, match="'j': it generates text and scores nothing"):
        await answers.score(ASKED)


def _built(tmp_path: Path, **model: Any) -> Auxiliaries:
    tree = {"model": {"max_model_len": 64}, "explorer": {"auxiliary_models": [model]}}
    return build_auxiliaries(RunConfig.model_validate(tree))


def test_a_classifier_that_came_after_the_configuration_was_read_is_built_as_one(tmp_path: Path) -> None:
    built = _built(tmp_path, name="rm", model_path=_directory(tmp_path, "Qwen2ForSequenceClassification"))
    assert built["rm"].is_classifier
    assert not _built(tmp_path, name="j", model_path=str(tmp_path), runner="generate")["j"].is_classifier

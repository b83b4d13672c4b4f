"""vLLM engines beside another in one process: their scores are the models' own, and they answer beside the other."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.tasks import TaskIdentity, TaskReleased
from schemas.weights import WeightVersion
from services.config.tree import RunConfig
from services.inference.auxiliary import Auxiliaries, AuxiliaryFailed, Defaults, EngineModel
from services.inference.build import build_auxiliaries
from services.inference.engine import Sampling
from services.inference.vllm_engine import VllmEngine, VllmSettings
from services.rollout.policy import Policy
from services.rollout.reward_model import RewardModelWorkflow

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # what Ray and vLLM leave open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def _settings(model: Path, **changes: Any) -> VllmSettings:
    settings: dict[str, Any] = {"dtype": "float32", "max_model_len": 96, "enforce_eager": True}
    return VllmSettings(str(model), **(settings | changes))


@pytest.fixture
def classifier(tiny_model: Path, tmp_path: Path) -> Path:
    """A reward model of random weights on the tiny model's body, with scores far from 0."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(3)
    model = AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=1, dtype=torch.float32)
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(tmp_path / "rm")
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(tmp_path / "rm")
    return tmp_path / "rm"


def _auxiliaries(classifier: Path) -> Auxiliaries:
    model = {"model_path": str(classifier), "dtype": "float32", "enforce_eager": True}
    return build_auxiliaries(RunConfig.model_validate({"explorer": {"auxiliary_models": [model]}}))


async def _rewarded(engine: VllmEngine, models: Auxiliaries) -> list[Any]:
    """What the workflow of reward models makes of the policy's answers, several at once."""
    policy = Policy(engine, Sampling(max_tokens=8, ignore_eos=True, seed=1), auxiliary=models)
    task = TaskReleased(
        run="a/b",
        task=TaskIdentity(ordinal=0, batch=0, taskset="sums", epoch=0, index=0),
        repeat_times=3,
        workflow="reward_model_workflow",
        row={"prompt": "1+1="},
    )
    workflow = RewardModelWorkflow()
    return await asyncio.gather(*(workflow.episode(task, policy.at(position), position) for position in range(3)))


@pytest.mark.e2e
async def test_auxiliary_engines_beside_the_policys_score_what_the_policy_sampled(
    tiny_model: Path, classifier: Path
) -> None:
    policy = VllmEngine(_settings(tiny_model))
    teacher_engine = VllmEngine(_settings(tiny_model, is_fixed=True))
    teacher = EngineModel("teacher", teacher_engine, Defaults(max_tokens=8, max_model_len=96))
    await policy.start()
    await teacher.start()
    reward_models = _auxiliaries(classifier)
    try:
        await policy.load(str(tiny_model), WeightVersion(incarnation=1, version=3))
        prompt = policy.tokenizer.encode("1+1=")
        sampled = await policy.sample(prompt, Sampling(max_tokens=40, ignore_eos=True))
        scored = await teacher.logprobs(prompt, sampled.token_ids.tolist())
        again = await teacher.logprobs(prompt, sampled.token_ids.tolist())  # with its prompt in the cache
        own = await policy.score(prompt, sampled.token_ids.tolist())
        said = await teacher.chat([{"role": "user", "content": "1+1="}], temperature=0.0)
        same = await teacher.chat([{"role": "user", "content": "1+1="}], temperature=0.0)
        with pytest.raises(AuxiliaryFailed, match="a prompt of 100 tokens, where max_model_len=96"):
            await teacher.logprobs([1] * 60, [1] * 40)
        rewarded = await _rewarded(policy, reward_models)
    finally:
        await policy.stop()
        await teacher.stop()
        await reward_models.stop()

    true = _logprobs(tiny_model, prompt, sampled.token_ids.tolist())
    assert set(sampled.token_versions.tolist()) == {3}
    assert teacher_engine.weights == WeightVersion()
    assert scored.dtype == np.float32
    for found in (scored, again, own, sampled.logprobs):
        assert np.abs(found - true).max() < 1e-3
    assert said == same
    scores = [_score(classifier, experience.response_text) for experience in rewarded]
    assert max(scores) - min(scores) > 0.1
    assert max(abs(score) for score in scores) > 1.0  # as no probability is
    assert [experience.reward for experience in rewarded] == pytest.approx(scores, abs=1e-4)


def _score(directory: Path, response: str) -> float:
    """The raw output of the head at the last token of the conversation, by transformers alone."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    chat = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": response}]
    ids = AutoTokenizer.from_pretrained(directory).apply_chat_template(chat, return_tensors="pt", return_dict=False)
    model = AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        return float(model.score(model.model(ids).last_hidden_state)[0, -1, 0])


def _logprobs(directory: Path, prompt: list[int], response: list[int]) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokens = [*prompt, *response]
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([tokens])).logits[0], dim=-1)
    return np.array([float(logprobs[place - 1, tokens[place]]) for place in range(len(prompt), len(tokens))])

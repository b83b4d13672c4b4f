"""One model trained by veRL's own trainer and by ours, from the same answers: the same numbers and the same weights."""

import os
from pathlib import Path

import pytest

from benchmarks.alignment.trace import COMPARED, furthest
from services.trainer.backends.verl_platform import ENVIRONMENT

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # what Ray leaves open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

LR = 1e-3


@pytest.mark.e2e
def test_grpo_and_ppo_make_verls_own_numbers_and_weights_step_by_step(tiny_model: Path, tmp_path: Path) -> None:
    os.environ.update(ENVIRONMENT)  # veRL chooses its platform when it is imported
    from benchmarks.alignment.cases import CASES, Scale
    from benchmarks.alignment.compare import compared, critic_of

    critic = critic_of(tiny_model, tmp_path / "critic")
    scale = Scale(tiny_model, critic, prompts=4, group=4, steps=3, lr=LR, critic_lr=10 * LR)
    by_case = {each.case.name: each for each in compared(scale, tmp_path)}
    assert len(by_case) == len(CASES)
    for name, each in by_case.items():
        for number, (their, our) in enumerate(zip(each.by_verl, each.by_us, strict=True), start=1):
            both = {
                verls: (their.metrics[verls], our.metrics[ours])
                for verls, ours in COMPARED.items()
                if verls in their.metrics
            }
            assert len(both) == (13 if each.case.is_ppo else 9), sorted(both)
            for metric, (theirs, ours) in both.items():
                assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6), (name, number, metric)
            for model, weights in their.weights.items():
                assert furthest(weights, our.weights[model]) < 2e-6, (name, number, model)
        first, last = each.by_us[0], each.by_us[-1]
        assert furthest(first.weights["actor"], last.weights["actor"]) > LR / 10, name
        is_off = any(abs(step.metrics["actor/ppo_kl"]) > 1e-4 for step in each.by_us)
        assert is_off != each.case.recomputes, name
    clipped = [step.metrics["actor/pg_clipfrac"] for each in by_case.values() for step in each.by_us]
    assert max(clipped) > 0.0

"""The numbers of a step, held against those that veRL's own functions make of the same batch."""

import math
import re
from collections.abc import Sequence as Rows
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from verl.trainer.ppo.metric_utils import compute_data_metrics, compute_throughout_metrics, compute_timing_metrics
from verl.utils.seqlen_balancing import log_seqlen_unbalance

from benchmarks.alignment.answers import Answer, Round, batch, data_proto
from services.config.tree import RunConfig
from services.trainer.backends.fake import REFERENCE_LAG, FakeBackend
from services.trainer.backends.packing import Layout
from services.trainer.backends.port import Floats, Sequence
from services.trainer.backends.verl_metrics import seqlen
from services.trainer.learning import Learner
from services.trainer.padding import padded
from services.trainer.performance import VERLS_NAMES, performance

KL_COEF = 0.2
NEVER_HERE = {
    "response/aborted_ratio",
    *(f"response_length_non_aborted/{of}" for of in ("mean", "max", "min", "clip_ratio")),
}
BY_TRUTH = {"response_length/clip_ratio", "prompt_length/clip_ratio"}
SECONDS = {"time/step": 4.0, "time/ref": 0.5, "time/values": 0.25, "time/update_actor": 2.0, "time/sync_weight": 0.125}


class Valued(FakeBackend):
    """A fake backend whose critic's values are drawn, and which keeps the rows that it was trained on."""

    rows: Rows[Sequence] = ()

    def values(self, sequences: Rows[Sequence]) -> list[Floats]:
        chance = np.random.default_rng(5)
        return [chance.normal(size=each.response_length).astype(np.float32) for each in sequences]

    def update_actor(self, sequences: Rows[Sequence], step: int, kl_coef: float = 0.0) -> dict[str, float]:
        self.rows = sequences
        return super().update_actor(sequences, step, kl_coef)


def _answers() -> Round:
    chance = np.random.default_rng(3)

    def answer(prompt: int) -> Answer:
        length = int(chance.integers(2, 9))
        drawn = chance.integers(0, 200, length).astype(np.int32)
        logprobs = -chance.random(length).astype(np.float32)
        return Answer(np.arange(prompt, dtype=np.int32), drawn, logprobs, float(chance.normal()))

    return [[answer(prompt) for _ in range(3)] for prompt in (4, 7)]


def _by_us(answers: Round) -> tuple[dict[str, float], Rows[Sequence]]:
    algorithm = {"algorithm_type": "ppo", "kl_penalty_fn": "k1", "kl_penalty_fn_args": {"kl_coef": KL_COEF}}
    backend = Valued(seconds_per_step=0.0)
    config = RunConfig.model_validate({"algorithm": {"kl_loss_fn": "none", **algorithm}})
    return Learner(config, backend).learn(batch(answers), 1), backend.rows


def _by_verl(answers: Round, rows: Rows[Sequence]) -> Any:
    """veRL's batch, with the advantages, returns and values that are in ours."""
    data = data_proto(answers)
    mask = data.batch["response_mask"]
    data.batch["token_level_rewards"] = data.batch["token_level_scores"] - KL_COEF * REFERENCE_LAG * mask
    for name in ("advantages", "returns", "values"):
        data.batch[name] = padded([getattr(row, name) for row in rows])
    return data


def test_what_describes_a_batch_is_what_verl_computes_of_it() -> None:
    answers = _answers()
    ours, rows = _by_us(answers)
    theirs = compute_data_metrics(_by_verl(answers, rows), use_critic=True)
    assert {name for name in theirs if name not in ours} == NEVER_HERE
    assert abs(theirs["critic/vf_explained_var"]) > 1e-3
    for name in theirs.keys() - NEVER_HERE - BY_TRUTH:
        assert ours[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-6), name
    assert (ours["actor/reward_kl_penalty"], ours["actor/reward_kl_penalty_coeff"]) == (pytest.approx(0.25), KL_COEF)


def test_clip_ratios_count_what_was_cut_off_rather_than_what_is_longest() -> None:
    answers = _answers()
    given = batch(answers)
    first, *rest = given.groups[0].experiences
    cut = first.model_copy(update={"is_truncated": True, "metrics": {"prompt_truncated": 1.0}})
    given.groups[0] = given.groups[0].model_copy(update={"experiences": (cut, *rest)})
    metrics = Learner(RunConfig(), FakeBackend(seconds_per_step=0.0)).learn(given, 1)
    assert metrics["response_length/clip_ratio"] == metrics["prompt_length/clip_ratio"] == pytest.approx(1 / 6)
    assert compute_data_metrics(_by_verl(answers, _by_us(answers)[1]))["prompt_length/clip_ratio"] == 0.5


def test_speed_is_counted_as_verl_counts_it() -> None:
    answers = _answers()
    data = data_proto(answers)
    tokens = float(sum(data.meta_info["global_token_num"]))
    raw = {VERLS_NAMES[name]: value for name, value in SECONDS.items()}
    theirs = compute_timing_metrics(data, raw) | compute_throughout_metrics(data, raw, n_gpus=3)
    ours = performance({**SECONDS, "perf/total_num_tokens": tokens}, ranks=3)
    assert ours.keys() == theirs.keys() - {"perf/total_num_tokens"}
    assert ours == pytest.approx({name: theirs[name] for name in ours})
    assert ours["perf/throughput"] == tokens / 12.0
    assert performance({"time/step": 1.0}, ranks=1) == {"timing_s/step": 1.0}  # nothing was left to train on


def test_tokens_of_the_ranks_are_those_of_verls_balance() -> None:
    _, rows = _by_us(_answers())
    rows = [
        replace(row, tokens=np.zeros(length, np.int32)) for row, length in zip(rows, (9, 8, 7, 3, 2, 1), strict=True)
    ]
    layout = Layout(ranks=2, token_budget=100, is_balanced=True)
    places = layout.places(rows)
    theirs = log_seqlen_unbalance([9, 8, 7, 3, 2, 1], [places[:3], places[3:]], "global_seqlen")
    assert seqlen(rows, layout) == theirs
    assert theirs["global_seqlen/minmax_diff"] == 18
    assert theirs["global_seqlen/balanced_max"] - theirs["global_seqlen/balanced_min"] < 6
    in_order = seqlen(rows, Layout(ranks=2, token_budget=100))
    assert in_order["global_seqlen/balanced_max"] == in_order["global_seqlen/max"] == 24
    odd = seqlen(rows[:5], Layout(ranks=2, token_budget=100))
    assert (odd["global_seqlen/max"], odd["global_seqlen/min"], odd["global_seqlen/mean"]) == (24, 5, 14.5)


def test_every_number_of_a_step_is_a_plain_one_and_stands_in_the_guide() -> None:
    ours, rows = _by_us(_answers())
    ours |= seqlen(rows, Layout(ranks=1, token_budget=100))
    ours |= performance({**ours, **SECONDS}, ranks=1)
    patterns = _documented()
    assert len(ours) > 60
    assert [name for name in ours if not any(fnmatchcase(name, pattern) for pattern in patterns)] == []
    assert all(type(value) is float and math.isfinite(value) for value in ours.values())


def _documented() -> list[str]:
    """The names in the first column of the guide's tables; one without a section has that of the name before it."""
    guide = Path(__file__).parents[3] / "docs" / "metrics.md"
    found: list[str] = []
    section = ""
    for cell in re.findall(r"^\| (`[^|]*`) \|", guide.read_text(encoding="utf-8"), re.MULTILINE):
        for name in re.findall(r"`([^`]+)`", cell):
            section = name.rpartition("/")[0] if "/" in name else section
            whole = name if "/" in name else f"{section}/{name}"
            found.append(re.sub(r"<\w+>|\.\.\.", "*", whole))
    return found

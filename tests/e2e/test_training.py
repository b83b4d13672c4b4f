"""veRL's engines on Ray: a batch makes the same weights however it is parted, and a checkpoint goes on exactly."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from schemas.experiences import Experience, GroupSampled
from schemas.tasks import TaskIdentity
from services.config.derive import resolved
from services.config.tree import RunConfig
from services.trainer.backends.port import CheckpointUnfit, Measure, Sequence
from services.trainer.backends.verl_backend import VerlBackend
from services.trainer.checkpoint_reading import load_fsdp_state_dict_from_verl_checkpoint
from services.trainer.exporting import export
from services.trainer.intake import Batch
from services.trainer.learning import Learner

Weights = dict[str, Any]
Parted = dict[tuple[str, str], tuple[dict[str, float], Weights]]

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # what Ray and vLLM leave open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

PPO = {
    "algorithm_type": "ppo",
    "repeat_times": 2,
    "optimizer": {"lr": 1e-3},
    "advantage_fn": "ppo",
    "kl_loss_fn": "none",
    "loss_agg_mode": "token-mean",
}
TERMS = {
    "kl_loss_fn": "k2",
    "kl_loss_fn_args": {"kl_coef": 0.1},
    "entropy_loss_fn": "default",
    "entropy_loss_fn_args": {"entropy_coef": 0.01},
}
SUPERVISED = {"kl_loss_fn": "none", "entropy_loss_fn": "none"}
LOSSES: dict[str, dict[str, Any]] = {
    "ppo": {"policy_loss_fn": "ppo", "loss_agg_mode": "token-mean", **TERMS},
    "gspo": {"policy_loss_fn": "gspo", "loss_agg_mode": "seq-mean-token-mean", **TERMS},
    "sum": {"policy_loss_fn": "ppo", "loss_agg_mode": "seq-mean-token-sum", **TERMS},
    "norm": {"policy_loss_fn": "ppo", "loss_agg_mode": "seq-mean-token-sum-norm", **TERMS},
    "mix": {"policy_loss_fn": "mix", "loss_agg_mode": "token-mean", **TERMS, "entropy_loss_fn": "mix"},
    "dpo": {"policy_loss_fn": "dpo", **SUPERVISED},
    "corrected": {
        "loss_agg_mode": "token-mean",
        "kl_loss_fn": "none",
        "rollout_correction": {
            "rollout_is": "token",
            "rollout_rs": "token_k2",
            "rollout_rs_threshold": 1.0,
            "bypass_mode": True,
            "loss_type": "reinforce",
        },
    },
}
CORRECTED = {
    "algorithm_type": "grpo",
    "repeat_times": 2,
    "kl_loss_fn": "none",
    "advantage_fn": "clipv",
    "advantage_fn_args": {"mu": 0.1, "max_frac": 0.2},
    "rollout_correction": {
        "rollout_is": "sequence",
        "rollout_is_batch_normalize": True,
        "rollout_rs": "token_k2",
        "rollout_rs_threshold": 1.0,
    },
}
MEASURES: tuple[Measure, ...] = ("logprob", "entropy", "nec")
LAYOUTS: dict[str, dict[str, Any]] = {
    "whole": {"max_token_len_per_gpu": 4096},
    "dynamic": {"max_token_len_per_gpu": 30},
    "in_order": {"max_token_len_per_gpu": 30, "balance_batch": False},
    "fixed": {
        "use_dynamic_bsz": False,
        "trainer_config": {"actor_rollout_ref": {"actor": {"ppo_micro_batch_size_per_gpu": 3}}},
    },
}


def _config(base: dict[str, Any], ranks: int, algorithm: Any, trainer: Any = None) -> RunConfig:
    """Resolved, and not held against the rules of a whole run: there is none here."""
    tree = copy.deepcopy(base)
    tree["cluster"]["trainer_ranks"] = ranks
    tree["algorithm"] = {"optimizer": {"lr": 1e-3}, **algorithm}
    tree["trainer"] |= trainer or {}
    return resolved(RunConfig.model_validate(tree))


@contextmanager
def _started(config: Any, checkpoint: Path | None = None) -> Iterator[tuple[VerlBackend, Learner]]:
    backend = VerlBackend(config)
    learner = Learner(config, backend)
    try:
        learner.start(checkpoint)
        yield backend, learner
    finally:
        backend.stop()


def _rows(seed: int, size: int = 10) -> list[Sequence]:
    """Responses of different lengths, with a log-prob of a reference for each token; the last two are an expert's."""
    chance = np.random.default_rng(seed)
    return [
        Sequence(
            tokens=chance.integers(0, 200, 5 + length).astype(np.int32),
            prompt_length=5,
            action_mask=np.ones(length, np.uint8),
            old_logprobs=np.full(length, -5.3, np.float32),
            advantages=np.full(length, (-1.0) ** place, np.float32),
            group=place // 2,
            is_expert=place >= size - 2,
            reference_logprobs=np.full(length, -5.5, np.float32),
        )
        for place, length in enumerate(chance.integers(3, 9, size))
    ]


def _batch(seed: int) -> Batch:
    groups = []
    for ordinal in range(3):
        rows = _rows(seed + ordinal, 2)
        experiences = tuple(
            Experience(
                position=position,
                tokens=row.tokens,
                prompt_length=row.prompt_length,
                action_mask=row.action_mask,
                logprobs=row.old_logprobs,
                token_versions=np.zeros(row.response_length, np.int32),
                reward=float(position),
            )
            for position, row in enumerate(rows)
        )
        task = TaskIdentity(ordinal=ordinal, batch=0, taskset="sums", epoch=0, index=ordinal)
        groups.append(GroupSampled(run="r", task=task, repeat_times=2, explorer="e", experiences=experiences))
    return Batch(groups=groups)


def _weights(backend: VerlBackend, directory: Path) -> Weights:
    directory.mkdir(parents=True)
    backend.write_weights(directory, "float32")
    return dict(load_file(directory / "model.safetensors"))


def _distance(one: Weights, other: Weights) -> float:
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def _parted(backend: VerlBackend, base: dict[str, Any], directory: Path, ranks: int) -> Parted:
    """Metrics and weights of one step under every loss and layout, each from the same weights, on the same engines."""
    backend.write_checkpoint(directory / "begin")
    found = {}
    for loss, algorithm in LOSSES.items():
        for layout, trainer in LAYOUTS.items():
            other = VerlBackend(_config(base, ranks, algorithm, trainer))
            other._groups = backend._groups
            other._set_losses()
            rows = _rows(1) if loss == "mix" else [replace(row, is_expert=False) for row in _rows(1)]
            metrics = other.update_actor(rows, 1, 0.1)
            found[loss, layout] = metrics, _weights(other, directory / f"{loss}-{layout}")
            other._groups["actor"].load_checkpoint(str(directory / "begin" / "actor"), None, False)
    found["learned", "whole"] = _learned(backend, _config(base, ranks, CORRECTED), directory / "learned")
    backend._groups["actor"].load_checkpoint(str(directory / "begin" / "actor"), None, False)
    backend._set_losses()
    return found


def _learned(backend: VerlBackend, config: RunConfig, directory: Path) -> tuple[dict[str, float], Weights]:
    """One whole step of another algorithm on the engines of `backend`."""
    other = VerlBackend(config)
    other._groups = backend._groups
    other._set_losses()
    return Learner(config, other).learn(_batch(1), 1), _weights(other, directory)


def _moved(backend: VerlBackend, learner: Learner, checkpoint: Path, directory: Path) -> tuple[Weights, list[Any]]:
    """The second step on the files of another number of ranks; weights, and values by the critic."""
    for role in ("actor", "critic"):
        backend._groups[role].load_checkpoint(str(checkpoint / role), None, False)
    learner.learn(_batch(2), 2)
    return _weights(backend, directory), backend.values(_rows(5))


def _assert_moved(moved: tuple[Weights, list[Any]], straight: Weights, straight_values: list[Any]) -> None:
    assert _distance(moved[0], straight) < 2e-5
    for value, expected in zip(moved[1], straight_values, strict=True):
        assert value == pytest.approx(expected, abs=1e-4)


def _assert_read_outside(checkpoint: Path, announced: Path, config: dict[str, Any], values: list[Any]) -> None:
    """The checkpoint of two ranks, read by transformers alone, is what was announced; its critic judges alike."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

    model = AutoModelForCausalLM.from_pretrained(config["model"]["model_path"])
    model.load_state_dict(load_fsdp_state_dict_from_verl_checkpoint(str(checkpoint / "actor")))
    of_version = AutoModelForCausalLM.from_pretrained(announced)
    export(checkpoint / "critic", checkpoint / "exported")
    critic = AutoModelForTokenClassification.from_pretrained(checkpoint / "exported")
    assert critic.config.num_labels == 1
    for row, expected in zip(_rows(5), values, strict=True):
        tokens = torch.tensor(row.tokens[None].astype(np.int64))
        with torch.no_grad():
            assert torch.equal(model(tokens).logits, of_version(tokens).logits)
            found = critic(tokens).logits[0, row.prompt_length - 1 : -1, 0]
        assert found.numpy() == pytest.approx(expected, abs=1e-5)


@pytest.mark.e2e
def test_a_batch_makes_the_same_weights_however_it_is_parted_and_a_checkpoint_goes_on_exactly_on_any_number_of_ranks(
    real_config, tmp_path: Path
) -> None:
    with _started(_config(real_config, 1, PPO)) as (one, learner):
        before = _weights(one, tmp_path / "before")
        parted_by_one = _parted(one, real_config, tmp_path / "of_one", 1)
        measured_by_one = one.measured(_rows(5), MEASURES)
        of_one = learner.learn(_batch(1), 1)
        after_one = _weights(one, tmp_path / "one")
        values = one.values(_rows(5))
        learner.write_checkpoint(tmp_path / "checkpoint")
        learner.learn(_batch(2), 2)
        straight_on, straight_values = _weights(one, tmp_path / "straight"), one.values(_rows(5))
    with _started(_config(real_config, 2, PPO)) as (two, learner):
        parted_by_two = _parted(two, real_config, tmp_path / "of_two", 2)
        measured_by_two = two.measured(_rows(5), MEASURES)
        of_two = learner.learn(_batch(1), 1)
        after_two = _weights(two, tmp_path / "two")
        values_of_two = two.values(_rows(5))
        learner.write_checkpoint(tmp_path / "of_two_ranks")
        learner.learn(_batch(2), 2)
        straight_on_two = _weights(two, tmp_path / "straight_on_two")
        moved_to_two = _moved(two, learner, tmp_path / "checkpoint", tmp_path / "moved_to_two")
    with _started(_config(real_config, 1, PPO), tmp_path / "checkpoint") as (resumed, learner):
        resumed_values = resumed.values(_rows(5))
        learner.learn(_batch(2), 2)
        gone_on, gone_values = _weights(resumed, tmp_path / "resumed"), resumed.values(_rows(5))
        moved_to_one = _moved(resumed, learner, tmp_path / "of_two_ranks", tmp_path / "moved_to_one")
    _assert_moved(moved_to_two, straight_on, straight_values)
    _assert_moved(moved_to_one, straight_on_two, straight_values)
    _assert_read_outside(tmp_path / "of_two_ranks", tmp_path / "two", real_config, values_of_two)
    for (loss, layout), (metrics, weights) in [*parted_by_one.items(), *parted_by_two.items()]:
        whole, made = parted_by_one[loss, "whole"]
        assert _distance(made, before) > 5e-4, loss
        assert _distance(weights, made) < 1e-5, (loss, layout)
        assert _of_models(metrics) == pytest.approx(_of_models(whole), rel=1e-4, abs=1e-6), (loss, layout)
    for measure, arrays in measured_by_one.items():
        for array, other in zip(arrays, measured_by_two[measure], strict=True):
            assert array == pytest.approx(other, abs=1e-5), measure
    learned, _ = parted_by_one["learned", "whole"]
    assert 0 < learned["advantage/frac_clipped_neg"] < 1
    assert 0 < learned["rollout_corr/rollout_rs_masked_fraction"] < 1
    assert learned["rollout_corr/rollout_is_batch_norm_factor"] != pytest.approx(1.0, abs=0.01)
    assert _of_models(of_two) == pytest.approx(_of_models(of_one), rel=1e-3, abs=1e-6)
    assert _distance(after_one, before) > 5e-4
    assert _distance(after_one, after_two) < 2e-5
    assert all(np.array_equal(gone_on[name], tensor) for name, tensor in straight_on.items())
    for first, resumed_at, straight, gone in zip(values, resumed_values, straight_values, gone_values, strict=True):
        assert np.array_equal(first, resumed_at)
        assert np.array_equal(straight, gone)
        assert not np.array_equal(straight, first)


@pytest.mark.e2e
def test_the_reference_stays_where_the_run_began_and_the_trainers_own_logprobs_take_the_samplers_place(
    real_config, tmp_path: Path
) -> None:
    algorithm = {
        "algorithm_type": "grpo",
        "kl_loss_fn": "k2",
        "kl_loss_fn_args": {"kl_coef": 0.1},
        "bypass_old_logprobs": False,
    }
    with _started(_config(real_config, 1, algorithm)) as (backend, learner):
        own = backend.measured(_rows(1), MEASURES)
        expected = _said(real_config["model"]["model_path"], _rows(1))
        first, second = learner.learn(_batch(1), 1), learner.learn(_batch(1), 2)
        backend.write_checkpoint(tmp_path)
    for measure in MEASURES:
        for found, said in zip(own[measure], expected, strict=True):
            assert found == pytest.approx(said[measure], abs=1e-5), measure
    assert first["actor/kl_loss"] == pytest.approx(0.0, abs=1e-6)
    assert second["actor/kl_loss"] > 1e-5
    assert first["actor/kl_coef"] == 0.1
    assert first["actor/ppo_kl"] == pytest.approx(0.0, abs=1e-6)
    assert second["actor/ppo_kl"] == pytest.approx(0.0, abs=1e-6)
    assert first["rollout_corr/kl"] != pytest.approx(0.0, abs=1e-2)
    with pytest.raises(CheckpointUnfit, match="holds no critic"):
        VerlBackend(_config(real_config, 1, PPO)).start(tmp_path)


def _of_models(metrics: dict[str, float]) -> dict[str, float]:
    prefixes = ("actor/", "critic/", "advantage/", "rollout", "training/")
    return {name: value for name, value in metrics.items() if name.startswith(prefixes)}


def _said(model_path: str, rows: list[Sequence]) -> list[dict[Measure, Any]]:
    """What `transformers` alone says at each response token: the formulas over the whole vocabulary."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    found: list[dict[Measure, Any]] = []
    for row in rows:
        with torch.no_grad():
            logits = model(torch.tensor(row.tokens[None].astype(np.int64))).logits[0, row.prompt_length - 1 : -1]
        every = torch.log_softmax(logits, dim=-1)
        chosen = torch.tensor(row.tokens[row.prompt_length :].astype(np.int64))
        entropy = -(every.exp() * every).sum(-1)
        changes = every.exp() * (entropy[:, None] + every)
        found.append(
            {
                "logprob": every.gather(1, chosen[:, None])[:, 0].numpy(),
                "entropy": entropy.numpy(),
                "nec": (every.exp() * changes).sum(-1).numpy(),
            }
        )
    return found

"""veRL's engine on Ray: two ranks train as one does, a checkpoint goes on exactly, a reference policy weighs in."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from services.config.load import load
from services.trainer.backends.port import Sequence
from services.trainer.backends.verl_backend import VerlBackend


def _backend(config: dict[str, Any], tmp_path: Path, ranks: int, **algorithm: Any) -> VerlBackend:
    config["cluster"]["trainer_ranks"] = ranks
    config["algorithm"] |= algorithm
    path = tmp_path / f"ranks_{ranks}.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return VerlBackend(load(path).config)


def _batch(seed: int, size: int = 7) -> list[Sequence]:
    chance = np.random.default_rng(seed)
    lengths = chance.integers(3, 9, size)
    return [
        Sequence(
            tokens=chance.integers(0, 200, 5 + length).astype(np.int32),
            prompt_length=5,
            action_mask=np.ones(length, np.uint8),
            old_logprobs=np.full(length, -5.3, np.float32),
            advantages=np.full(length, (-1.0) ** place, np.float32),
        )
        for place, length in enumerate(lengths)
    ]


def _weights(backend: VerlBackend, directory: Path) -> dict[str, Any]:
    directory.mkdir()
    backend.write_weights(directory, "float32")
    return load_file(directory / "model.safetensors")


pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # what Ray and vLLM leave open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.mark.e2e
def test_two_ranks_train_as_one_and_a_checkpoint_goes_on_exactly(real_config, tmp_path: Path) -> None:
    two = _backend(real_config, tmp_path, ranks=2)
    two.start(None)
    try:
        of_two = two.train(_batch(1))
        after_two = _weights(two, tmp_path / "two")
    finally:
        two.stop()

    one = _backend(real_config, tmp_path, ranks=1)
    one.start(None)
    try:
        before = _weights(one, tmp_path / "before")
        of_one = one.train(_batch(1))
        after_one = _weights(one, tmp_path / "one")
        one.write_checkpoint(tmp_path / "checkpoint")
        one.train(_batch(2))
        straight_on = _weights(one, tmp_path / "straight")
    finally:
        one.stop()

    resumed = _backend(real_config, tmp_path, ranks=1)
    resumed.start(tmp_path / "checkpoint")
    try:
        resumed.train(_batch(2))
        gone_on = _weights(resumed, tmp_path / "resumed")
    finally:
        resumed.stop()

    assert of_two["actor/pg_loss"] == pytest.approx(of_one["actor/pg_loss"], rel=1e-4)
    assert of_two["actor/grad_norm"] == pytest.approx(of_one["actor/grad_norm"], rel=1e-4)
    assert any((after_one[name] != before[name]).any() for name in before)
    for name, tensor in after_one.items():
        assert np.allclose(after_two[name], tensor, atol=1e-4), name
    for name, tensor in straight_on.items():
        assert np.array_equal(gone_on[name], tensor), name


@pytest.mark.e2e
def test_the_kl_loss_is_zero_at_the_reference_and_grows_away_from_it(real_config, tmp_path: Path) -> None:
    backend = _backend(
        real_config, tmp_path, ranks=1, kl_loss_fn="k2", kl_loss_fn_args={"kl_coef": 0.1}, loss_agg_mode="token-mean"
    )
    backend.start(None)
    try:
        first = backend.train(_batch(1))
        second = backend.train(_batch(1))
    finally:
        backend.stop()
    assert first["actor/kl_loss"] == pytest.approx(0.0, abs=1e-6)
    assert second["actor/kl_loss"] > 1e-5
    assert first["actor/kl_coef"] == 0.1

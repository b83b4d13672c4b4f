"""What the progress view says of a run in one line: of a reward where there is one, else of the loss."""

from typing import Any

from schemas.state import Counts, TrainProgress
from schemas.weights import WeightVersion
from services.account.snapshot import Snapshot
from services.launcher.view import Rates, line


def _snapshot(at: float, **train: Any) -> Snapshot:
    progress = TrainProgress(weights=WeightVersion(version=4), total_steps=8, **train)
    return Snapshot(run="p/n", at=at, release=None, train=progress, newest=None, members=())


def test_a_run_on_rows_shows_its_loss_and_how_fast_it_learns() -> None:
    rates = Rates()
    rates.take(_snapshot(0.0, step=2, loss=3.5, counts=Counts(trained=64, tokens_trained=1000)))
    now = _snapshot(4.0, step=4, loss=1.25, counts=Counts(trained=128, tokens_trained=1400))
    rates.take(now)
    assert line(now, rates) == (
        "step 4/8 · loss 1.250 · version - · 128 experiences trained · 100 tokens/s · left 0:08 · training"
    )


def test_what_was_filtered_is_shown_where_anything_was() -> None:
    counts = Counts(trained=64, filtered={"abandoned": 4, "dapo_dynamic_sampling": 8})
    before, now = _snapshot(0.0, step=3, reward=0.5), _snapshot(1.0, step=4, reward=0.5, counts=counts)
    rates = Rates()
    rates.take(before)
    assert "filtered" not in line(before, rates)
    assert line(now, rates).endswith(" · training · 12 filtered")


def test_a_run_that_samples_shows_its_reward_though_it_has_a_loss() -> None:
    now = _snapshot(0.0, step=4, loss=0.1, reward=0.5, staleness=1.0)
    rates = Rates()
    rates.take(now)
    assert line(now, rates).startswith("step 4/8 · reward 0.500 · version - · staleness 1.000 · tasks - experiences -")

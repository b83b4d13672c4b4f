"""In which order rows come: pure functions of rows, epoch and seed, so that whoever takes over goes on at any place.

In an epoch each row of each taskset comes once, so that taskset, epoch and index name a task. The rows of an adaptive
taskset have no order: they are chosen as their tasks are released.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from services.rollout.config import DataSelectorConfig
from services.rollout.errors import UnknownName
from services.rollout.selectors import SELECTORS

Indices = npt.NDArray[np.int64]


def interleaved(sizes: Sequence[int]) -> tuple[Indices, Indices]:
    """One round over tasksets that have so many tasks in it, each spread evenly over it.

    Returns:
        For each of the `sum(sizes)` places, which taskset it is, and how many of that taskset came before.
    """
    which = np.concatenate([np.full(size, taskset, np.int64) for taskset, size in enumerate(sizes)])
    nth = np.concatenate([np.arange(size, dtype=np.int64) for size in sizes])
    due = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes])
    by_time = np.argsort(due, kind="stable")
    return which[by_time], nth[by_time]


def apportioned(total: int, weights: Sequence[float]) -> list[int]:
    """`total` in shares by `weights` (largest remainders), none of them 0 where `total` is enough for that."""
    exact = np.asarray(weights, np.float64) * total / sum(weights)
    shares = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(shares - exact, kind="stable")
    shares[by_remainder[: total - int(shares.sum())]] += 1
    while total >= len(shares) and not shares.all():
        shares[np.argmin(shares)] += 1
        shares[np.argmax(shares)] -= 1
    return [int(share) for share in shares]


def order(size: int, epoch: int, selector: DataSelectorConfig) -> Indices:
    """The order in which the rows of a taskset come in `epoch`: a permutation of `0 .. size-1`.

    Raises:
        UnknownName: the selector is none of ORDERS.
    """
    return _order(size, epoch, selector.selector_type or "sequential", selector.seed)


def easy_first(features: npt.NDArray[np.float64]) -> Indices:
    """Rows by their features (`N x K`), the highest first; the later of these decide between equal ones."""
    by_last = tuple(-features[:, place] for place in reversed(range(features.shape[1])))
    places: Indices = np.lexsort(by_last).astype(np.int64)
    return places


MOST_ADAPTIVE_ROWS = 500_000
"""What is known of so many rows fits into one value of the run's key-value store."""


def assert_known(selector_type: str | None) -> None:
    """
    Raises:
        UnknownName: there is no selector of this name.
    """
    if selector_type is not None and selector_type not in SELECTORS:
        raise UnknownName("selector_type", selector_type, SELECTORS)


def _sequential(size: int, epoch: int, seed: int) -> Indices:
    return np.arange(size, dtype=np.int64)


def _shuffled(size: int, epoch: int, seed: int) -> Indices:
    """A new shuffle each epoch, by the generator and seed of Trinity-RFT's `shuffle`."""
    return np.random.default_rng(seed + epoch).permutation(size)


def _random(size: int, epoch: int, seed: int) -> Indices:
    """As `shuffle`, from streams of its own. Drawing with replacement would give two tasks one name."""
    return np.random.default_rng((seed, epoch, 1)).permutation(size)


ORDERS = {"sequential": _sequential, "shuffle": _shuffled, "random": _random}


@lru_cache(maxsize=64)
def _order(size: int, epoch: int, selector_type: str, seed: int) -> Indices:
    if selector_type not in ORDERS:
        raise UnknownName("selector_type", selector_type, ORDERS)
    rows = ORDERS[selector_type](size, epoch, seed)
    rows.setflags(write=False)
    return rows

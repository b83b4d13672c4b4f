"""What repeated answers say of a model: mean, spread, and the expected best and worst of k.

Best and worst are bootstrapped as in Trinity-RFT, to the same numbers: 1000 draws of k with replacement, seed 42.
"""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

DRAWS = 1000
SEED = 42


def scores_at_k(values: Sequence[float]) -> dict[str, float]:
    """Of the `n` answers to one task: `mean@n`, `std@n`, and `best@k`, `worst@k` for k of `subset_sizes(n)`."""
    sample = np.asarray(values, dtype=np.float64)
    n = len(sample)
    scores = {f"mean@{n}": float(sample.mean()), f"std@{n}": float(sample.std())}
    for k in subset_sizes(n):
        drawn = sample[np.random.RandomState(SEED).choice(n, size=(DRAWS, k), replace=True)]
        scores[f"best@{k}"] = float(drawn.max(axis=1).mean())
        scores[f"worst@{k}"] = float(drawn.min(axis=1).mean())
    return scores


def subset_sizes(n: int) -> list[int]:
    """2, 4, 8 ... below `n`, and `n` itself; none where there is one answer."""
    if n <= 1:
        return []
    powers = [2**exponent for exponent in range(1, n.bit_length()) if 2**exponent < n]
    return [*powers, n]


def taskset_scores(tasks: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """The mean over tasks of every metric's `scores_at_k`, under `metric/mean@k`. What an answer lacks counts as 0.

    Args:
        tasks: for each task, the metrics of each of its answers. A task without answers is left out.
    """
    metrics = sorted({name for answers in tasks for answered in answers for name in answered})
    gathered: dict[str, list[float]] = defaultdict(list)
    for answers, metric in itertools.product(filter(None, tasks), metrics):
        for name, score in scores_at_k([answered.get(metric, 0.0) for answered in answers]).items():
            gathered[f"{metric}/{name}"].append(score)
    return {name: float(np.mean(values)) for name, values in gathered.items()}

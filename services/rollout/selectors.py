"""The selectors of rows by name, and the arguments that they take."""

from typing import Any

FIXED = ("sequential", "shuffle", "random")
"""Each a permutation of the rows in every epoch."""

EASY_FIRST = ("offline_easy2hard", "easy_to_hard")
"""Two names of one selector: the row with the highest features, which is the easiest, comes first in every epoch."""

ADAPTIVE = ("difficulty_based",)
"""Rows are chosen by how hard they are now, as their tasks are released."""

SELECTORS = (*FIXED, *EASY_FIRST, *ADAPTIVE)

DIFFICULTY: dict[str, Any] = {
    "m": 16,
    "lamb": 0.2,
    "rho": 0.2,
    "target_reward": 1.0,
    "tau": 1.0,
    "do_sample": False,
    "adaptive_rho": False,
    "metric_key": None,
}
"""The arguments of `difficulty_based`, under `data_selector.kwargs`."""

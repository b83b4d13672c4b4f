"""Training on rows of data, beside sampled experiences or in their place: which algorithms do, and how rows count."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, Self

ExperienceSource = Literal["stream", "replay", "rows", "store"]
"""The stream of the run itself, that of another run which is replayed, rows of a data file, or what an earlier run has
stored of its experiences."""

RowSchema = Literal["sft", "cpt", "dpo"]

ROW_SCHEMAS: dict[str, RowSchema] = {"sft": "sft", "raft": "sft", "cpt": "cpt", "dpo": "dpo"}
"""The algorithms that learn from rows, by `algorithm_type`; `mode: train` alone reads them."""

ROWS_ONLY = ("sft", "cpt", "dpo")
"""Those of them that learn from nothing else."""

EXPERIENCES_OF_A_ROW: dict[RowSchema, int] = {"sft": 1, "cpt": 1, "dpo": 2}
"""A row of dpo is a pair: the chosen answer and the rejected one."""


@dataclass(frozen=True)
class Mixing:
    """`sample_strategy: mix`: a share of each optimizer step is expert data from an auxiliary buffer."""

    expert_data_ratio: float = 0.5
    sft_dataset_name: str = "sft_dataset"

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """From `sample_strategy_args`; what is not given, or has no place here, is left at its default."""
        ratio, name = given.get("expert_data_ratio"), given.get("sft_dataset_name")
        return cls(
            cls.expert_data_ratio if ratio is None or not is_share(ratio) else float(ratio),
            cls.sft_dataset_name if name is None else str(name),
        )

    @property
    def _share(self) -> Fraction:
        """The ratio as it was written: 0.2 is a fifth, which no float is."""
        return Fraction(str(self.expert_data_ratio))

    def experts(self, whole: int) -> int:
        """Expert rows in a step of `whole` experiences: `ceil(expert_data_ratio * whole)`."""
        return math.ceil(self._share * whole)

    def whole(self, usual: int) -> int:
        """The smallest step in which `usual` experiences are not experts."""
        return math.ceil(usual / (1 - self._share))


def is_share(value: object) -> bool:
    """Whether a value can be a share of a batch that leaves room for others: 0 or more, below 1."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1

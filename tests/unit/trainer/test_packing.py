"""How a batch is parted over ranks and micro-batches."""

import numpy as np
import pytest

from services.trainer.backends.packing import Layout, pack
from services.trainer.backends.port import Sequence


def _rows(*lengths: int) -> list[Sequence]:
    """Sequences of so many tokens, the first of them the prompt."""
    return [
        Sequence(
            tokens=np.arange(length, dtype=np.int32),
            prompt_length=1,
            action_mask=np.ones(length - 1, np.uint8),
            old_logprobs=np.zeros(length - 1, np.float32),
            advantages=np.ones(length - 1, np.float32),
            group=place,
            is_expert=place == 0,
        )
        for place, length in enumerate(lengths)
    ]


@pytest.mark.parametrize(
    ("layout", "rows", "filled", "size"),
    [
        (Layout(2, 100), 5, 6, None),
        (Layout(2, 100, together=2), 6, 8, None),
        (Layout(1, 100, micro_batch_size=3), 7, 9, 3),
        (Layout(2, 100, micro_batch_size=8), 17, 20, 5),
        (Layout(2, 100, micro_batch_size=8), 5, 6, 3),
        (Layout(2, 100, micro_batch_size=3, together=2), 6, 8, 1),
    ],
)
def test_each_rank_has_as_many_sequences_in_whole_micro_batches(
    layout: Layout, rows: int, filled: int, size: int | None
) -> None:
    found = layout.filled(_rows(*[4] * rows))
    assert len(found) == filled
    assert all(row.group == -1 and row.action_mask.sum() == 0 for row in found[rows:])
    assert layout.options(found).get("micro_batch_size_per_gpu") == size


def test_a_sequence_or_pair_longer_than_the_budget_raises_it() -> None:
    assert Layout(1, 10).options(_rows(4, 12, 3, 3))["max_token_len_per_gpu"] == 12
    assert Layout(1, 10, together=2).options(_rows(4, 12, 3, 3))["max_token_len_per_gpu"] == 16
    assert Layout(1, 10).options(_rows(4, 2))["max_token_len_per_gpu"] == 10


def test_half_a_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="3 sequences cannot be taken 2 at a time"):
        Layout(1, 10, together=2).filled(_rows(4, 4, 4))


def test_the_totals_are_those_of_the_real_sequences() -> None:
    data = pack(_rows(4, 12, 3), Layout(2, 100), {})
    assert data.batch_size[0] == 4
    names = ("tokens", "sequences", "length", "expert_tokens", "expert_sequences")
    assert [data[f"totals_{name}"] for name in names] == [16, 3, 11, 3, 1]

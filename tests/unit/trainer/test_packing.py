"""How a batch is parted over ranks and micro-batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.backends.balance import spread, workload
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


def _tokens_of_ranks(layout: Layout, lengths: list[int]) -> list[int]:
    filled = layout.filled(_rows(*lengths))
    each = len(filled) // layout.ranks
    return [sum(len(row.tokens) for row in filled[at : at + each]) for at in range(0, len(filled), each)]


def test_ranks_get_as_much_to_compute_where_the_batch_is_balanced() -> None:
    lengths = [100, 90, 80, 70, 4, 3, 3, 2]
    assert _tokens_of_ranks(Layout(2, 400), lengths) == [340, 12]
    assert _tokens_of_ranks(Layout(2, 400, is_balanced=True), lengths) == [176, 176]


@pytest.mark.parametrize(
    "layout",
    [
        Layout(3, 400, is_balanced=True),
        Layout(3, 400, micro_batch_size=2, is_balanced=True),
        Layout(2, 400, together=2, is_balanced=True),
        Layout(1, 400, is_balanced=True),
    ],
)
def test_each_sequence_is_found_where_it_was_put(layout: Layout) -> None:
    rows = _rows(9, 50, 3, 40, 7, 21, 5, 11)
    filled = layout.filled(rows)
    assert [filled[at].group for at in layout.found_at(rows)] == list(range(8))
    assert sum(row.group == -1 for row in filled) == len(filled) - 8


def test_what_belongs_together_stays_side_by_side_when_it_is_spread() -> None:
    filled = Layout(2, 400, together=2, is_balanced=True).filled(_rows(9, 50, 3, 40, 7, 21, 5, 11))
    pairs = [tuple(row.group for row in filled[at : at + 2]) for at in range(0, 8, 2)]
    assert sorted(pairs) == [(0, 1), (2, 3), (4, 5), (6, 7)]


@given(lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=40), ranks=st.integers(1, 6))
def test_no_rank_has_more_to_compute_than_another_by_more_than_one_sequence_costs(
    lengths: list[int], ranks: int
) -> None:
    works = [workload(length) for length in [*lengths, *[1] * (-len(lengths) % ranks)]]
    order = spread(works, ranks)
    assert sorted(order) == list(range(len(works)))
    each = len(works) // ranks
    loads = [sum(works[item] for item in order[at : at + each]) for at in range(0, len(works), each)]
    assert max(loads) - min(loads) <= max(works)

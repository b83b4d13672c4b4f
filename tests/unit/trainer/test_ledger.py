"""The ledger holds exactly what was entered, compactly, and survives its own text."""

from hypothesis import given
from hypothesis import strategies as st

from services.trainer.ledger import Entry, Ledger, Numbers


@given(st.lists(st.integers(0, 60)))
def test_numbers_hold_what_a_set_would_hold(added: list[int]) -> None:
    numbers = Numbers()
    numbers.add(added)
    assert [number for number in range(70) if number in numbers] == sorted(set(added))
    assert len(numbers) == len(set(added))
    assert numbers.floor not in numbers


@given(st.lists(st.integers(0, 60)), st.integers(0, 60))
def test_numbers_survive_json(added: list[int], floor: int) -> None:
    numbers = Numbers(floor=floor)
    numbers.add(added)
    assert Numbers.from_json(numbers.as_json()) == numbers


def test_numbers_in_order_leave_no_exceptions() -> None:
    numbers = Numbers()
    numbers.add(range(1000))
    assert (numbers.floor, numbers.above) == (1000, set())


def test_each_fate_is_counted_under_its_own_name() -> None:
    ledger = Ledger()
    ledger.record(
        [
            Entry(1, 0, "trained", experiences=8, tokens=80),
            Entry(2, 1, "filtered:abandoned", experiences=8),
            Entry(3, 0, "duplicate", experiences=8),
            Entry(4, None, "quarantined"),
        ]
    )
    assert ledger.sequences.floor == 5
    assert ledger.ordinals.floor == 2
    assert ledger.counts.trained == 8
    assert ledger.counts.tokens_trained == 80
    assert ledger.counts.filtered == {"abandoned": 8}
    assert ledger.counts.duplicates == 8
    assert ledger.counts.quarantined == 1


def test_a_ledger_read_back_is_the_same_ledger() -> None:
    ledger = Ledger(step=7)
    ledger.record([Entry(1, 3, "trained", 8, 64), Entry(5, 4, "filtered:abandoned", 8)])
    assert Ledger.from_json(ledger.to_json()) == ledger

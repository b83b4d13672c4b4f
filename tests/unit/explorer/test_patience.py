"""The time limit follows the tasks that were answered, and never makes a slow task a lost one."""

import pytest

from services.explorer.config import DynamicTimeoutConfig
from services.explorer.patience import Patience


def patience(**settings: object) -> Patience:
    return Patience(DynamicTimeoutConfig.model_validate({"enable": True, "ratio": 3.0, **settings}), 100.0)


def test_the_limit_is_a_multiple_of_the_mean_time_after_the_warm_up() -> None:
    limits = patience(warmup_min_steps=2)
    for batch, seconds in ((0, 1.0), (0, 3.0), (1, 2.0)):
        limits.note(batch, seconds)
    assert limits.limit_s(1, 1) == 100.0
    assert limits.limit_s(2, 1) == 6.0
    limits.note(5, 18.0)
    assert limits.limit_s(2, 1) == 18.0


def test_it_is_never_above_the_configured_limit() -> None:
    limits = patience()
    limits.note(0, 90.0)
    assert limits.limit_s(1, 1) == 100.0


def test_a_task_that_comes_again_has_all_the_time() -> None:
    limits = patience()
    limits.note(0, 1.0)
    assert [limits.limit_s(1, attempt) for attempt in (1, 2, 3)] == [3.0, 100.0, 100.0]


def test_without_a_warm_up_the_first_answer_decides() -> None:
    limits = patience(warmup_min_steps=0)
    assert limits.limit_s(0, 1) == 100.0
    limits.note(0, 2.0)
    assert limits.limit_s(0, 1) == 6.0


@pytest.mark.parametrize("batches", [(3, 1, 2), (1, 2, 3), (2, 3, 1)])
def test_batches_may_be_answered_in_any_order(batches: tuple[int, ...]) -> None:
    limits = patience(warmup_min_steps=2)
    for batch in batches:
        limits.note(batch, 1.0)
    assert [limits.limit_s(batch, 1) for batch in (2, 3)] == [100.0, 3.0]


def test_it_has_to_be_asked_for() -> None:
    limits = patience(enable=False)
    limits.note(0, 1.0)
    assert limits.limit_s(9, 1) == 100.0

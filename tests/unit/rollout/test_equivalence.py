"""Mathematical equality, and what is done about answers that no one can judge."""

import time

import pytest

from services.rollout import equivalence
from services.rollout.equivalence import equivalent


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("42", "42"),
        ("42.0", "42"),
        ("1,234", "1234"),
        ("$18", "18"),
        (r"\frac{1}{2}", "0.5"),
        ("1/2", r"\frac12"),
        (r"$\frac{2}{4}$", r"\frac{1}{2}"),
        ("x = 5", "5"),
        ("The answer is 5.", "5"),
        ("72 clips", "72"),
        (r"\sqrt{8}", r"2\sqrt{2}"),
        ("(1,2)", "(1, 2)"),
        ("2x+1", "1+2x"),
    ],
)
def test_equal_answers(answer: str, truth: str) -> None:
    assert equivalent(answer, truth)


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("41", "42"),
        (r"\frac{1}{2}", "2"),
        (r"\frac{1}{2}", "1"),
        ("The answer is 6.", "5"),
        ("(2,1)", "(1,2)"),
        ("", "5"),
        ("5", ""),
        ("", ""),
        ("nan", "5"),
        ("1" * 3000 + "x", "5"),
    ],
)
def test_unequal_answers(answer: str, truth: str) -> None:
    assert not equivalent(answer, truth)


def test_an_answer_that_cannot_be_judged_in_time_is_wrong_and_the_next_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert equivalent("1+1", "2"), "the judge is up"
    monkeypatch.setattr(equivalence, "JUDGE_TIMEOUT_S", 0.5)
    began = time.monotonic()
    assert not equivalent("9^{9^{9^9}}", "5")
    assert time.monotonic() - began < 2.0
    monkeypatch.undo()
    assert equivalent(r"\frac{2}{4}", r"\frac{1}{2}")

"""The reward of programs: by what they print, by what they return, and by assertions."""

import json
from typing import Any

import pytest

from services.rollout.answers import Answer
from services.rollout.code_reward import cases_of, code_of, code_reward

DOUBLE = "```python\nprint(2 * int(input()))\n```"
ADD = "Here:\n```python\ndef add(a, b):\n    return a + b\n```\nDone."


def accuracy(response: str, truth: Any, **arguments: Any) -> float:
    told = truth if isinstance(truth, str) else json.dumps(truth)
    return code_reward(Answer(response, told), **arguments)["accuracy"]


def test_a_program_is_right_where_it_prints_what_is_expected() -> None:
    tests = {"inputs": ["3\n", "-4\n"], "outputs": ["6\n", "-8"]}
    assert accuracy(DOUBLE, tests) == 1.0
    assert accuracy(DOUBLE, tests | {"outputs": ["6", "8"]}) == 0.0
    assert accuracy(DOUBLE, tests | {"outputs": ["6", "8"]}, partial=True) == 0.5
    assert accuracy(DOUBLE, [{"input": "3", "output": "6"}]) == 1.0


def test_a_function_is_right_where_it_returns_what_is_expected() -> None:
    tests = {"fn_name": "add", "inputs": [[1, 2], ["a", "b"]], "outputs": [3, "ab"]}
    assert accuracy(ADD, tests) == 1.0
    assert accuracy(ADD, tests | {"outputs": [[3], ["ab"]]}) == 1.0
    assert accuracy(ADD, tests | {"outputs": [3, "ba"]}) == 0.0
    solution = "```\nclass Solution:\n    def add(self, a, b):\n        print('noise')\n        return a + b\n```"
    assert accuracy(solution, tests) == 1.0


def test_assertions_hold_or_not() -> None:
    assert accuracy(ADD, ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]) == 1.0
    assert accuracy(ADD, "assert add(1, 2) == 3\nassert add(1, 1) == 3", partial=True) == 0.5
    assert accuracy(ADD, {"assert_case": ["assert add(1, 2) == 4"]}) == 0.0


@pytest.mark.parametrize(
    "cheat",
    [
        "import os; os._exit(0)",
        "import sys; sys.exit()",
        "raise SystemExit(0)",
        "print('6')\nwhile True: pass",
        "print(6",
    ],
)
def test_a_program_that_does_not_come_to_its_end_is_wrong(cheat: str) -> None:
    assert accuracy(f"```python\n{cheat}\n```", ["assert False"], timeout_s=1.0) == 0.0
    assert accuracy(f"```python\n{cheat}\n```", {"inputs": ["3"], "outputs": ["6"]}, timeout_s=1.0) == 0.0


def test_what_holds_no_program_is_wrong() -> None:
    assert accuracy("I do not know.", {"inputs": ["3"], "outputs": ["6"]}) == 0.0


def test_the_last_block_of_python_is_the_program() -> None:
    assert code_of("```python\nfirst\n```\n```py\nsecond\n```\n```text\nout\n```") == "second\n"
    assert code_of("```\nbare\n```") == "bare\n"
    assert code_of("none") is None


def test_only_so_many_tests_are_run() -> None:
    assert len(cases_of(json.dumps({"inputs": ["1"] * 50, "outputs": ["1"] * 50}), 20).pairs) == 20


@pytest.mark.parametrize("truth", ["", "42", "{}", "[]"])
def test_a_truth_without_tests_is_refused(truth: str) -> None:
    with pytest.raises(ValueError, match="the truth holds no tests"):
        code_reward(Answer(ADD, truth))

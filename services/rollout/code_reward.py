"""The reward of programs: the share of tests that a program passes, or whether it passes all, in a sandbox."""

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from services.rollout.answers import Answer, Scores
from services.rollout.sandbox import Limits, run_python

_FENCED = re.compile(r"```(?P<language>\w*)[^\n]*\n(?P<code>.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Cases:
    """The tests of one task: programs that read and write, calls of a function, or assertions after the program."""

    pairs: tuple[tuple[Any, Any], ...] = ()
    assertions: tuple[str, ...] = ()
    function: str = ""


def code_reward(
    answer: Answer,
    timeout_s: float = 6.0,
    memory_mib: int = 512,
    disk_mib: int = 64,
    partial: bool = False,
    max_tests: int = 20,
) -> Scores:
    """Accuracy 1 where the last code block of the response passes all tests of the truth; `partial`: the share passed.

    The truth is JSON, `{"inputs": [...], "outputs": [...]}` for stdin and stdout, the same with `fn_name` for calls
    (each input is a list of arguments), or a list of assertions; or assertions as plain text. Of more than `max_tests`,
    the first are run, each under the limits.

    Raises:
        ValueError: the truth holds no tests.
    """
    code = code_of(answer.response)
    tests = cases_of(answer.truth, max_tests)
    if code is None:
        return {"accuracy": 0.0}
    limits = Limits(timeout_s=timeout_s, memory_mib=memory_mib, disk_mib=disk_mib)
    number = len(tests.pairs) or len(tests.assertions)
    passed = 0
    for place in range(number):
        if _passes(code, tests, place, limits):
            passed += 1
        elif not partial:
            return {"accuracy": 0.0}
    return {"accuracy": passed / number}


def code_of(response: str) -> str | None:
    """The last block of Python, else the last block of any language; None where there is no block."""
    blocks = [(found["language"].lower(), found["code"]) for found in _FENCED.finditer(response)]
    python = [code for language, code in blocks if language in ("python", "py", "python3")]
    return (python or [code for _, code in blocks] or [None])[-1]


def cases_of(truth: str, max_tests: int) -> Cases:
    """The tests that a reference holds."""
    try:
        told = json.loads(truth)
    except ValueError:
        told = [line for line in truth.splitlines() if line.startswith("assert")]
    if isinstance(told, dict):
        tests = _of_mapping(told, max_tests)
    elif isinstance(told, list) and all(isinstance(test, dict) for test in told):
        tests = Cases(pairs=tuple((test.get("input"), test.get("output")) for test in told[:max_tests]))
    else:
        tests = Cases(assertions=tuple(map(str, told[:max_tests])) if isinstance(told, list) else ())
    if not tests.pairs and not tests.assertions:
        raise ValueError(
            f"the truth holds no tests: {truth[:100]!r}; it has to be JSON with inputs and outputs, or assertions"
        )
    return tests


def _of_mapping(told: dict[str, Any], max_tests: int) -> Cases:
    assertions = told.get("assert_case") or told.get("test_list") or []
    if assertions:
        return Cases(assertions=tuple(map(str, assertions[:max_tests])))
    pairs = tuple(zip(told.get("inputs", []), told.get("outputs", []), strict=False))
    return Cases(pairs=pairs[:max_tests], function=str(told.get("fn_name") or ""))


def _passes(code: str, tests: Cases, place: int, limits: Limits) -> bool:
    if tests.assertions:
        return _holds(code, tests.assertions[place], limits)
    given, expected = tests.pairs[place]
    if tests.function:
        return _returns(code, tests.function, given, expected, limits)
    ran = run_python(code, _as_text(given), limits)
    return ran.is_well and _lines(ran.stdout) == _lines(_as_text(expected))


def _holds(code: str, assertion: str, limits: Limits) -> bool:
    """The word at the end tells a program that came to its end from one that left early."""
    word = secrets.token_hex(16)
    ran = run_python(f"{code}\n{assertion}\nprint({word!r})\n", "", limits)
    return ran.is_well and _lines(ran.stdout)[-1:] == [word]


def _returns(code: str, function: str, arguments: Any, expected: Any, limits: Limits) -> bool:
    """The value is compared here, out of the program's reach."""
    word = secrets.token_hex(16)
    call = _CALL.format(function=function, arguments=json.dumps(json.dumps(arguments)), word=word)
    ran = run_python(f"{code}\n{call}", "", limits)
    last = (_lines(ran.stdout) or [""])[-1]
    if not ran.is_well or not last.startswith(word):
        return False
    found = json.loads(last.removeprefix(word))
    return bool(found == expected or [found] == expected)


_CALL = """
import json as _json
_arguments = _json.loads({arguments})
_function = globals().get({function!r}) or getattr(Solution(), {function!r})
print("\\n" + {word!r} + _json.dumps(_function(*_arguments)))
"""


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return "\n".join(map(str, value))
    return json.dumps(value)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]

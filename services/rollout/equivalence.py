"""Whether two mathematical answers are equal, by the `math-verify` library, in a process that can be killed.

An answer such as `9^{9^{9^9}}` keeps the computer algebra busy for ever, inside one call that holds the interpreter:
neither a thread nor a signal ends it. So a child process judges, and one that is not done in time is replaced.
"""

import atexit
import json
import logging
import multiprocessing
import re
import signal
import threading
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import structlog

log = structlog.get_logger(__name__)

JUDGE_TIMEOUT_S = 5.0
START_TIMEOUT_S = 60.0
MAX_ANSWER_CHARACTERS = 2000

_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")


def equivalent(answer: str, truth: str) -> bool:
    """Whether `answer` is mathematically `truth`. What cannot be read, or judged in time, is not."""
    if answer.strip() == truth.strip():
        return bool(truth.strip())
    left, right = _number(answer), _number(truth)
    if left is not None and right is not None:
        return left == right
    if max(len(answer), len(truth)) > MAX_ANSWER_CHARACTERS:
        return False
    return _judge.verdict(answer, truth)


def _number(text: str) -> Decimal | None:
    """A plain finite number, with or without separators of thousands."""
    plain = text.strip().replace(",", "").removeprefix("$")
    try:
        number = Decimal(plain)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


class _Judge:
    """The child process, started when first asked. One question at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: SpawnProcess | None = None
        self._questions: Connection[Any, Any] | None = None

    def verdict(self, answer: str, truth: str) -> bool:
        with self._lock:
            questions = self._started()
            try:
                questions.send_bytes(json.dumps([answer, truth]).encode())
                if questions.poll(JUDGE_TIMEOUT_S):
                    return bool(json.loads(questions.recv_bytes()))
                log.warning("answer_not_judged_in_time", answer=answer[:200], timeout_s=JUDGE_TIMEOUT_S)
            except (EOFError, OSError) as error:
                log.warning("judge_died", answer=answer[:200], error=str(error))
            self._kill()
            return False

    def stop(self) -> None:
        with self._lock:
            self._kill()

    def _started(self) -> "Connection[Any, Any]":
        if self._questions is None:
            context = multiprocessing.get_context("spawn")
            self._questions, answers = context.Pipe()
            self._process = context.Process(target=_serve, args=(answers,), name="judge", daemon=True)
            self._process.start()
            answers.close()
            if not self._questions.poll(START_TIMEOUT_S):
                self._kill()
                raise TimeoutError(f"the process that judges answers did not start within {START_TIMEOUT_S:.0f} s")
            self._questions.recv_bytes()
        return self._questions

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._questions is not None:
            self._questions.close()
        self._process = self._questions = None


_judge = _Judge()
atexit.register(_judge.stop)


def _serve(questions: "Connection[Any, Any]") -> None:
    """The child's loop: it ends when the parent's end of the pipe is closed."""
    from math_verify import parse, verify

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent decides
    logging.disable(logging.CRITICAL)
    questions.send_bytes(b"ready")
    while True:
        try:
            answer, truth = json.loads(questions.recv_bytes())
        except EOFError:
            return
        readings = [_readings(parse, text) for text in (truth, answer)]
        is_equal = all(readings) and verify(*readings, timeout_seconds=None)
        questions.send_bytes(json.dumps(bool(is_equal)).encode())


def _readings(parse: Any, text: str) -> Sequence[Any]:
    """What `text` may mean. A bare formula is put where LaTeX is looked for: in prose, only a number is found."""
    is_bare = not any(sign in text for sign in ("$", "\\boxed", "\\(", "\\[")) and not _WORD.search(text)
    framed = f"\\boxed{{{text}}}"
    first, second = (framed, text) if is_bare else (text, framed)
    found: Sequence[Any] = parse(first, parsing_timeout=None) or parse(second, parsing_timeout=None)
    return found

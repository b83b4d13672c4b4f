"""Two-digit additions with one solved example before them: a task that a small model learns within minutes."""

import itertools
import json
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

SOLVED = (21, 34)
TRAIN_ROWS = 512
EVAL_ROWS = 64


def additions(train_rows: int, eval_rows: int, seed: int = 0) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Rows `{"prompt", "answer"}` to train on and to evaluate on. No sum is in both, in either order of its terms."""
    sums = [pair for pair in itertools.combinations_with_replacement(range(10, 100), 2) if pair != SOLVED]
    rng = random.Random(seed)
    drawn = [rng.sample(pair, 2) for pair in rng.sample(sums, train_rows + eval_rows)]
    rows = [_row(left, right) for left, right in drawn]
    return rows[eval_rows:], rows[:eval_rows]


def worked(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """The same additions with their answers, to be learned as they stand: `{"prompt", "response"}`."""
    return [{"prompt": row["prompt"], "response": f"{row['answer']}\n"} for row in rows]


def judged(rows: list[dict[str, str]], seed: int = 0) -> list[dict[str, str]]:
    """The same additions, each with its answer and one that is off by 1 or 10: `{"prompt", "chosen", "rejected"}`."""
    rng = random.Random(seed)
    wrong = [int(row["answer"]) + rng.choice((-10, -1, 1, 10)) for row in rows]
    return [
        {"prompt": row["prompt"], "chosen": f"{row['answer']}\n", "rejected": f"{number}\n"}
        for row, number in zip(rows, wrong, strict=True)
    ]


def texts(rows: list[dict[str, str]], lines: int = 8) -> list[dict[str, str]]:
    """The same additions as plain text, so many to a text: `{"text"}`."""
    solved = [f"{row['prompt'].rsplit(chr(10), 1)[-1]}{row['answer']}" for row in rows]
    return [{"text": "\n".join(solved[first : first + lines]) + "\n"} for first in range(0, len(solved), lines)]


def write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> bool:
    """Write `rows` as JSON lines, whole or not at all. Returns False where the file already holds them."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
    return True


def _row(left: int, right: int) -> dict[str, str]:
    first, second = SOLVED
    return {"prompt": f"{first}+{second}={first + second}\n{left}+{right}=", "answer": str(left + right)}

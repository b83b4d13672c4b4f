"""Two-digit additions with one solved example before them: a task that a small model learns within minutes."""

import itertools
import json
import os
import random
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


def write_rows(path: Path, rows: list[dict[str, str]]) -> bool:
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

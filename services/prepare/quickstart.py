"""What the quickstart reads: `model/`, `addition.jsonl` and `addition_eval.jsonl` under one directory."""

from pathlib import Path

import structlog

from services.prepare.addition import EVAL_ROWS, TRAIN_ROWS, additions, write_rows
from services.prepare.directory import make_once
from services.prepare.pretrained import convert, gguf_file

log = structlog.get_logger(__name__)

RECIPE = "smollm2-135m-instruct bfloat16 1"


def prepare(into: Path) -> None:
    """Make the quickstart's model and data under `into`. What is complete already is left as it is.

    Raises:
        PrepareError: the package that carries the model is not installed.
    """
    into.mkdir(parents=True, exist_ok=True)
    train, held_out = additions(TRAIN_ROWS, EVAL_ROWS)
    for name, rows in (("addition.jsonl", train), ("addition_eval.jsonl", held_out)):
        made = write_rows(into / name, rows)
        log.info("data_made" if made else "data_present", path=str(into / name), rows=len(rows))
    made = make_once(into / "model", RECIPE, lambda directory: convert(gguf_file(), directory))
    log.info("model_made" if made else "model_present", path=str(into / "model"))

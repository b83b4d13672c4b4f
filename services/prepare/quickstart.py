"""What the quickstart reads: `model/`, `addition.jsonl` and `addition_eval.jsonl` under one directory; and what the
examples read: the same additions as rows of data, `addition_sft`, `addition_dpo` and `addition_cpt`, and
`frozen_lake.jsonl`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from services.prepare.addition import EVAL_ROWS, TRAIN_ROWS, additions, judged, texts, worked, write_rows
from services.prepare.directory import make_once
from services.prepare.lakes import lakes
from services.prepare.pretrained import convert, gguf_file

log = structlog.get_logger(__name__)

RECIPE = "smollm2-135m-instruct bfloat16 1"


def prepare(into: Path) -> None:
    """Make the quickstart's model and data under `into`. What is complete already is left as it is.

    Raises:
        PrepareError: the package that carries the model is not installed.
    """
    into.mkdir(parents=True, exist_ok=True)
    prepare_data(into)
    made = make_once(into / "model", RECIPE, lambda directory: convert(gguf_file(), directory))
    log.info("model_made" if made else "model_present", path=str(into / "model"))


def prepare_data(into: Path) -> None:
    """Make the data alone."""
    train, held_out = additions(TRAIN_ROWS, EVAL_ROWS)
    files: dict[str, Sequence[Mapping[str, object]]] = {
        "addition.jsonl": train,
        "addition_eval.jsonl": held_out,
        "addition_sft.jsonl": worked(train),
        "addition_dpo.jsonl": judged(train),
        "addition_cpt.jsonl": texts(train),
        "frozen_lake.jsonl": lakes(),
    }
    for name, rows in files.items():
        made = write_rows(into / name, rows)
        log.info("data_made" if made else "data_present", path=str(into / name), rows=len(rows))

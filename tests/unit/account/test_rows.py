"""The summary of a run on rows, as a person reads it."""

from services.account.rows import rows_lines

SUMMARY = {
    "run": "p/n",
    "algorithm": "sft",
    "data": "worked.jsonl",
    "phase": "finished",
    "steps": 3,
    "wall_s": 12.3,
    "loss_by_step": [2.5, 1.5, 0.5],
    "experiences": {"trained": 20, "filtered": {"too_long": 3, "empty": 1}, "quarantined": 0, "duplicates": 0},
    "tokens": {"trained": 100},
    "weights": "/runs/n/weights/version_3",
    "checkpoint": None,
}


def test_what_was_learned_and_what_was_left_out_is_told() -> None:
    assert [*rows_lines(SUMMARY)] == [
        "p/n: finished after 3 steps in 12 s",
        "sft on worked.jsonl: 20 experiences trained (100 tokens), 4 filtered (1 empty, 3 too_long)",
        "loss: 2.5000 at the first step, 0.5000 at the last",
        "weights: /runs/n/weights/version_3",
    ]


def test_a_run_that_made_no_step_has_no_loss() -> None:
    nothing = SUMMARY | {"phase": "stopped", "steps": 0, "loss_by_step": [], "weights": None}
    assert [line.split(":")[0] for line in rows_lines(nothing)] == ["p/n", "sft on worked.jsonl"]


def test_a_run_that_was_stopped_tells_of_a_checkpoint_that_its_weights_are_older_than() -> None:
    stopped = SUMMARY | {"phase": "stopped", "steps": 5, "checkpoint": "/runs/n/global_step_5"}
    *_, last = rows_lines(stopped)
    assert last == "newer than these weights: /runs/n/global_step_5; the same command again goes on from there"

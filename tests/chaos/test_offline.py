"""Training on rows of data, expert rows and stages, with whoever dies meanwhile.

The fake backend's state is a digest of its batches in order: equal digests mean equal training.
"""

import asyncio
import copy
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.config.load import load
from services.launcher.stages import current
from services.trainer.checkpoints import checkpoints, fenced

PLAIN = {"prompt_type": "plaintext", "prompt_key": "prompt", "response_key": "answer"}


def _write(path: Path, rows: list[dict[str, str]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def _worked(path: Path, number: int = 60) -> str:
    """Every eleventh answer is longer than the model."""
    return _write(
        path, [{"prompt": f"{n}+1=", "answer": "9" * 99 if n % 11 == 5 else str(n + 1)} for n in range(number)]
    )


def _on_rows(config: dict[str, Any], path: str, algorithm: str, **changes: Any) -> dict[str, Any]:
    """The same run on rows of a file, slowly enough to be killed."""
    found = copy.deepcopy(config)
    buffer = {
        "storage_type": "file",
        "path": path,
        "format": PLAIN,
        "data_selector": {"selector_type": "shuffle", "seed": 5},
    }
    found |= {"mode": "train", "name": algorithm, "algorithm": {"algorithm_type": algorithm}}
    found["buffer"] = {"train_batch_size": 8, "total_epochs": 2, "trainer_input": {"experience_buffer": buffer}}
    found["trainer"] = {"trainer_type": "fake", "save_interval": 3, "trainer_config": {"seconds_per_step": 0.1}}
    return found | changes


def _state(run_dir: Path, step: int) -> str:
    state = json.loads((run_dir / f"global_step_{step}" / "actor" / "fake_state.json").read_text(encoding="utf-8"))
    return str(state["digest"])


async def _killed_at(run: Any, step: int) -> None:
    async with run.bus() as bus:
        await run.until(bus, lambda found: found.step >= step)
        os.kill(await run.pid_of(bus, "trainer"), signal.SIGKILL)


@pytest.mark.chaos
async def test_a_run_on_rows_that_was_killed_sent_back_and_given_more_ends_as_one_that_was_not(
    start, config, tmp_path
) -> None:
    path = _worked(tmp_path / "worked.jsonl")
    whole = start(_on_rows(config, path, "sft"), file="whole.yaml")
    broken = _on_rows(config, path, "sft", name="broken")
    broken["buffer"]["total_steps"] = 8
    killed = start(broken, file="killed.yaml")
    await _killed_at(killed, 5)
    assert await whole.ends() == 0, whole.output
    assert await killed.ends() == 0, killed.output
    assert "service_restarting" in killed.output
    assert killed.summary()["steps"] == 8
    del broken["buffer"]["total_steps"]
    again = start(broken, "run", "--from-step", "6", file="again.yaml")
    assert await again.ends() == 0, again.output
    assert "run_gone_back" in again.output
    assert [found.step for found in checkpoints(again.config.run_dir)] == [3, 6, 9, 12, 14]
    assert [found.step for found in fenced(again.config.run_dir)] == [8]
    steps = 14  # 55 of 60 rows are not too long: twice 55, 8 a step, and the rest
    assert _state(whole.config.run_dir, steps) == _state(again.config.run_dir, steps)
    counts = {"trained": 110, "filtered": {"too_long": 10}, "quarantined": 0, "duplicates": 0}
    for run in (whole, again):
        summary = run.summary()
        assert summary["experiences"] | counts == summary["experiences"]
        assert (summary["phase"], summary["steps"], len(summary["loss_by_step"])) == ("finished", steps, steps)
        assert sorted(path.name for path in (run.config.run_dir / "weights").glob("version_14*"))
    assert f"sft on {path}: 110 experiences trained" in whole.output
    assert "10 filtered (10 too_long)" in whole.output


@pytest.mark.chaos
async def test_malformed_rows_are_told_before_anything_starts(start, config, tmp_path) -> None:
    path = _write(tmp_path / "rows.jsonl", [{"prompt": "1+1=", "answer": "2"}, {"prompt": "2+2="}])
    run = start(_on_rows(config, path, "sft"))
    assert await run.ends() == 2
    assert f"{path}, row 1: 'answer' is null" in run.output
    assert not run.config.run_dir.exists()


@pytest.mark.chaos
async def test_a_killed_run_with_expert_rows_is_made_again_bit_by_bit(start, config, tmp_path) -> None:
    expert = {"storage_type": "file", "path": _worked(tmp_path / "worked.jsonl"), "format": PLAIN}
    config["algorithm"] = {
        "algorithm_type": "mix",
        "repeat_times": 4,
        "kl_loss_fn": "none",
        "sample_strategy_args": {"expert_data_ratio": 0.2},
    }
    config["buffer"]["trainer_input"] = {"auxiliary_buffers": {"sft_dataset": expert}}
    config["explorer"]["rollout_model"]["extra_engine_args"] = {"delay_s_per_token": 0.02}
    run = start(config)
    await _killed_at(run, 6)
    assert await run.ends() == 0, run.output
    assert run.summary()["experiences"]["trained"] == 12 * 16
    verified = start(config, "replay", "--verify", file="verify.yaml")
    assert await verified.ends() == 0, verified.output
    assert "checkpoint 12, model and optimizer: bit-identical" in verified.output


def _staged(config: dict[str, Any], path: str) -> dict[str, Any]:
    warmup = _on_rows(config, path, "sft")
    warmup["buffer"] |= {"total_steps": 8, "batch_size": 8}
    own = {key: warmup[key] for key in ("mode", "algorithm", "buffer", "trainer")}
    sampled = {"repeat_times": 4, "kl_loss_fn": "none", "algorithm_type": "grpo"}
    config["algorithm"] = {"kl_loss_fn": "none"}
    return config | {
        "name": "staged",
        "stages": [{"stage_name": "sft", **own}, {"stage_name": "rl", "algorithm": sampled}],
    }


@pytest.mark.chaos
async def test_stages_follow_each_other_and_a_rerun_goes_on_at_the_first_that_is_not_over(
    start, config, tmp_path
) -> None:
    staged = _staged(config, _worked(tmp_path / "worked.jsonl"))
    root = tmp_path / "checkpoints" / "tests" / "staged"
    run = start(staged)
    while not [*(root / "rl").glob("global_step_*")]:
        assert run.process.poll() is None, run.output
        await asyncio.sleep(0.05)
    run.process.send_signal(signal.SIGINT)
    assert await run.ends() == 130, run.output
    trained = json.loads((root / "sft" / "summary.json").read_text(encoding="utf-8"))
    assert (trained["run"], trained["phase"], trained["steps"]) == ("tests/staged-sft", "finished", 8)
    begun = yaml.safe_load((root / "rl" / "config.yaml").read_text(encoding="utf-8"))
    assert begun["model"]["model_path"] == str(root / "sft" / "weights" / "version_8")
    assert begun["explorer"]["rollout_model"]["model_path"] == begun["model"]["model_path"]

    stages = load(tmp_path / "run.yaml").stages
    place = await current(stages)
    assert (place.number, place.is_over, place.config.run_name) == (2, False, "tests/staged-rl")

    again = start(staged, file="again.yaml")
    assert await again.ends() == 0, again.output
    assert "stage 1 of 2 is over" in again.output
    assert "stage 2 of 2: tests/staged-rl, from " in again.output
    summary = json.loads((root / "rl" / "summary.json").read_text(encoding="utf-8"))
    assert (summary["phase"], summary["steps"], summary["experiences"]["lost"]) == ("finished", 12, 0)
    assert summary["experiences"]["trained"] == 192

    place = await current(stages)
    assert (place.number, place.is_over) == (2, True)

"""The whole real stack at once: nats-server, vLLM, veRL's FSDP on Ray with two ranks, TensorBoard."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from services.trainer.checkpoints import checkpoints

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # what Ray and vLLM leave open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.mark.e2e
async def test_a_run_trains_evaluates_records_and_exports(start, real_config, tmp_path: Path) -> None:
    taskset = real_config["buffer"]["explorer_input"]["taskset"]
    evaluated = copy.deepcopy(taskset) | {"name": "sums_eval", "rollout_args": {"temperature": 0.0}}
    real_config["buffer"]["explorer_input"]["eval_tasksets"] = [evaluated]
    run = start(real_config)
    assert await run.ends(patience_s=400) == 0, run.output[-4000:]

    summary = run.summary()
    assert summary["phase"] == "finished"
    assert summary["steps"] == len(summary["reward_by_step"]) == len(summary["accuracy_by_step"]) == 3
    assert summary["tasks"] == {"released": 12, "answered": 12, "quarantined": 0}
    assert (summary["experiences"]["trained"], summary["experiences"]["lost"]) == (48, 0)
    assert sorted(found["version"] for found in summary["evaluations"]) == [0, 2, 3]
    assert [found.step for found in checkpoints(run.config.run_dir)] == [2, 3]
    _assert_tensorboard(run.config.run_dir / "monitor" / "tensorboard")
    _assert_logprobs_of_the_announced_weights(run, tmp_path)


def _assert_tensorboard(directory: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    wanted = {
        "explorer": ("rollout/reward/mean", 3),
        "trainer": ("actor/pg_loss", 3),
        "evaluator": ("eval/sums_eval/accuracy/mean@1", 3),
    }
    for service, (name, points) in wanted.items():
        record = EventAccumulator(str(directory / service))
        record.Reload()
        assert len(record.Scalars(name)) == points, f"{service}: {record.Tags()['scalars']}"


def _assert_logprobs_of_the_announced_weights(run: Any, tmp_path: Path) -> None:
    """Every exported log-prob is the one that transformers computes with the weights kept for its version."""
    import torch
    from transformers import AutoModelForCausalLM

    out = tmp_path / "experiences.parquet"
    found = subprocess.run(
        [sys.executable, "-m", "services.cli", "export", "--config", str(tmp_path / "run.yaml"), "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    rows = pyarrow.parquet.read_table(out).to_pylist()
    assert len(rows) == 48
    versions = sorted({version for row in rows for version in row["token_versions"]})
    assert len(versions) >= 2
    for version in versions:
        model = AutoModelForCausalLM.from_pretrained(
            run.config.run_dir / "weights" / f"version_{version}", dtype=torch.float32
        )
        for row in rows:
            if set(row["token_versions"]) == {version}:
                assert np.abs(_logprobs(model, row) - np.array(row["logprobs"])).mean() < 1e-3


def _logprobs(model: Any, row: dict[str, Any]) -> Any:
    import torch

    tokens = torch.tensor([row["tokens"]])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(tokens).logits[0], dim=-1)
    start = row["prompt_length"]
    return np.array([float(logprobs[place - 1, row["tokens"][place]]) for place in range(start, len(row["tokens"]))])

"""Rows of data on the real trainer: it learns them, and hands its weights from stage to stage."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

PLAIN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def _stage(name: str, path: Path, rows: list[dict[str, str]], steps: int, **format_: str) -> dict[str, Any]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    buffer = {
        "storage_type": "file",
        "path": str(path),
        "format": {"prompt_type": "plaintext", "chat_template": PLAIN, **format_},
    }
    return {
        "stage_name": name,
        "algorithm": {"algorithm_type": name},
        "buffer": {"total_steps": steps, "trainer_input": {"experience_buffer": buffer}},
    }


@pytest.mark.e2e
@pytest.mark.slow
async def test_worked_answers_and_then_preferences_are_learned_in_stages(start, real_config, tmp_path) -> None:
    sums = [(left, left + 3, 2 * left + 3) for left in range(16)]
    worked = [{"prompt": f"{a}+{b}=", "response": f"{c}\n"} for a, b, c in sums]
    pairs = [{"prompt": f"{a}+{b}=", "chosen": f"{c}\n", "rejected": f"{c + 1}\n"} for a, b, c in sums]
    config = {key: real_config[key] for key in ("project", "checkpoint_root_dir", "model")}
    config |= {
        "cluster": {"gpu_per_node": 0, "trainer_ranks": 1},
        "mode": "train",
        "name": "learned",
        "algorithm": {"optimizer": {"lr": 5e-3}},
        "buffer": {"train_batch_size": 16},
        "explorer": {"rollout_model": {"dtype": "float32"}},
        "trainer": {**real_config["trainer"], "save_interval": 0},
        "stages": [
            _stage("sft", tmp_path / "worked.jsonl", worked, steps=12),
            _stage("dpo", tmp_path / "pairs.jsonl", pairs, steps=12),
        ],
    }
    run = start(config)
    assert await run.ends(500) == 0, run.output
    root = tmp_path / "checkpoints" / "tests" / "learned"
    sft, dpo = (json.loads((root / name / "summary.json").read_text(encoding="utf-8")) for name in ("sft", "dpo"))
    assert (sft["experiences"]["trained"], dpo["experiences"]["trained"]) == (12 * 16, 12 * 16)
    assert sft["loss_by_step"][0] > 3.0
    assert sft["loss_by_step"][-1] < 1.5
    assert dpo["loss_by_step"][0] == pytest.approx(math.log(2), abs=1e-4)  # the policy begins as its own reference
    assert dpo["loss_by_step"][-1] < 0.5
    begun = yaml.safe_load((root / "dpo" / "config.yaml").read_text(encoding="utf-8"))
    assert begun["model"]["model_path"] == sft["weights"] == str(root / "sft" / "weights" / "version_12")
    assert (Path(dpo["weights"]) / "config.json").is_file()

"""A random soak: whatever is done to the processes of a run, an independent reader finds every task in one place.

`make soak MINUTES=n` goes on with new seeds for n minutes; `TRINITY_SOAK_SEED=s` repeats the acts of one seed.
"""

import asyncio
import copy
import itertools
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from soak import Soak
from verdict import Terms, faults

from services.config.load import load
from services.synchronizer.pace import staleness_bound
from services.synchronizer.plan import pace_of

ACTS, STEPS = 20, 60
PATIENCE_S = 90.0
FIRST_SEED = 1
POISON = """\
from services.rollout.rewards import register_reward

@register_reward("poisonous")
def poisonous(answer):
    if answer.row["prompt"] == "17+17=":
        raise ValueError("this row is poison")
    return {"accuracy": 0.0}
"""


def _soaked(config: dict[str, Any], root: Path, steps: int) -> dict[str, Any]:
    """A run whose one bad row is filtered, with every lease short enough to run out during an act."""
    plugins = root / "plugins"
    plugins.mkdir()
    (plugins / "poison.py").write_text(POISON, encoding="utf-8")
    rows = [json.dumps({"prompt": f"{n}+{n}=", "answer": str(2 * n)}) for n in range(97)]
    (root / "rows.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    taskset = {"path": str(root / "rows.jsonl"), "default_reward_fn_type": "poisonous"}
    config["buffer"]["explorer_input"]["taskset"] |= taskset
    config |= {"plugin_dirs": [str(plugins)], "checkpoint_root_dir": str(root / "checkpoints")}
    config["buffer"]["total_steps"] = steps
    config["explorer"] |= {"max_retry_times": 0, "leave_timeout": 1, "runner_per_model": 4}
    config["explorer"]["rollout_model"]["extra_engine_args"] = {"delay_s_per_token": 0.03}
    config["synchronizer"] |= {"task_lease": 2, "member_timeout": 2, "lease_ttl": 2, "max_deliver": 3}
    config["trainer"]["trainer_config"] = {"seconds_per_step": 0.05, "seconds_per_checkpoint": 0.15}
    return config


def _terms(path: Path) -> Terms:
    config = load(path).config
    bound = staleness_bound(pace_of(config))
    return Terms(config.train_batch_size, bound, config.max_model_len or 0)


async def _audit(path: Path) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", "audit", "--config", str(path), "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    return process.returncode or 0, output.decode() + errors.decode()


async def _soak(config: dict[str, Any], root: Path, seed: int, count: int, steps: int) -> Soak:
    """One run under the acts of one seed, and the two accounts of it."""
    soak = Soak(root, _soaked(config, root, steps), seed, count)
    await soak.start()
    try:
        await soak.suffer()
        observed = await soak.end(PATIENCE_S)
        path = root / "audit.yaml"
        soak.config["bus"]["url"] = soak.fleet.server.url
        path.write_text(yaml.safe_dump(soak.config), encoding="utf-8")
        found = faults(observed, _terms(path))
        assert found == [], "\n".join([*found, soak.account()])
        status, account = await _audit(path)
        assert status == 0, f"{account}\n{soak.account()}"
        audited = json.loads(account)["experiences"]
        assert (audited["lost"], audited["twice"]) == (0, 0), account
        assert audited["trained"] == observed.ledger["counts"]["trained"]
    finally:
        await soak.stop()
    return soak


@pytest.mark.chaos
@pytest.mark.slow
async def test_a_run_that_everything_happens_to_loses_nothing_and_trains_nothing_twice(config, tmp_path) -> None:
    seed = int(os.environ.get("TRINITY_SOAK_SEED", FIRST_SEED))
    await _soak(config, tmp_path, seed, ACTS, STEPS)


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.skipif("TRINITY_SOAK_MINUTES" not in os.environ, reason="make soak MINUTES=n")
async def test_run_after_run_with_new_seeds(config, tmp_path_factory, request) -> None:
    ends_at = time.monotonic() + 60 * float(os.environ["TRINITY_SOAK_MINUTES"])
    first = int(os.environ.get("TRINITY_SOAK_SEED", int(time.time())))
    done: Counter[str] = Counter()
    for seed in itertools.count(first):
        if time.monotonic() > ends_at:
            break
        root = tmp_path_factory.mktemp(f"seed_{seed}")
        soak = await _soak(copy.deepcopy(config), root, seed, 2 * ACTS, 2 * STEPS)
        done += soak.counted
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"seed {seed}: sound after {sum(soak.counted.values())} acts; so far {dict(done)}")

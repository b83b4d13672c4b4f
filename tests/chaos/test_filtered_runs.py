"""Runs of which a part of the answers is filtered: no style stalls, every step is full, and whoever dies, each
experience is trained on once, or filtered under the rule that left it out."""

import copy
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bus.server import LocalServer
from services.trainer.checkpoints import checkpoints

STEPS = 6
REWARD = """\
from services.rollout.rewards import register_reward

@register_reward("half_of_the_rows_are_easy")
def half(answer):
    number = int(answer.row["prompt"].split("+")[0])
    is_easy = number % 2 == 0
    return {"accuracy": 1.0 if is_easy else float(sum(answer.response.encode()) % 2)}
"""
DYNAMIC = [{"name": "pass_rate_calculator"}, {"name": "dapo_dynamic_sampling"}]


@pytest.fixture
def config(config: dict[str, Any], tmp_path) -> dict[str, Any]:
    """All answers to every other row are right."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "half.py").write_text(REWARD, encoding="utf-8")
    config["plugin_dirs"] = [str(tmp_path / "plugins")]
    config["buffer"]["total_steps"] = STEPS
    config["buffer"]["explorer_input"]["taskset"]["default_reward_fn_type"] = "half_of_the_rows_are_easy"
    config["explorer"]["rollout_model"]["extra_engine_args"] = {"delay_s_per_token": 0.01}
    config["data_processor"] = {"experience_pipeline": {"operators": DYNAMIC}}
    config["synchronizer"]["keep_versions"] = -1
    return config


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LocalServer]:
    found = LocalServer(tmp_path / "bus" / "store")
    await found.start()
    yield found
    await found.stop()


def _counts(run: Any) -> dict[str, Any]:
    """What the newest checkpoint counts, held against the summary's account."""
    ledger = checkpoints(run.config.run_dir)[-1].ledger()
    summary = run.summary()
    experiences = summary["experiences"]
    assert (summary["phase"], summary["disagreements"]) == ("finished", [])
    assert (experiences["lost"], experiences["twice"]) == (0, 0)
    assert experiences["trained"] == ledger.counts.trained
    assert experiences["filtered"] == ledger.counts.filtered
    return {"steps": summary["steps"], "released": summary["tasks"]["released"], **experiences}


@pytest.mark.chaos
async def test_an_on_policy_run_fills_every_step_though_half_of_the_answers_are_filtered(start, config) -> None:
    config["synchronizer"] |= {"sync_offset": 0, "sync_interval": 1}
    run = start(config)
    assert await run.ends() == 0, run.output
    counts = _counts(run)
    assert counts["steps"] == STEPS
    assert counts["trained"] == STEPS * 16
    assert counts["filtered"]["dapo_dynamic_sampling"] >= 0.3 * counts["trained"]
    assert counts["released"] * 4 == counts["trained"] + counts["filtered"]["dapo_dynamic_sampling"]
    audited = start(config, "audit", "--json", file="audit.yaml")
    assert await audited.ends() == 0, audited.output
    account = json.loads(audited.output[audited.output.index("\n{") :])
    assert (account["is_sound"], set(account["staleness"])) == (True, {"0"})


@pytest.mark.chaos
@pytest.mark.slow
async def test_a_filtered_run_whose_services_are_killed_loses_nothing_and_trains_nothing_twice(start, config) -> None:
    config["synchronizer"] |= {"sync_style": "fully_async", "max_staleness": 2, "sync_offset": 0}
    config["algorithm"] |= {"sample_strategy": "staleness_control", "sample_strategy_args": {"max_staleness": 1}}
    config["trainer"] |= {"save_interval": 2}
    run = start(config)
    async with run.bus() as bus:
        for step, service in ((1, "explorer"), (2, "trainer"), (3, "synchronizer"), (5, "trainer")):
            await run.until(bus, lambda found, step=step: found.step >= step)
            os.kill(await run.pid_of(bus, service), signal.SIGKILL)
        assert await run.ends() == 0, run.output
    counts = _counts(run)
    assert (counts["steps"], counts["trained"]) == (STEPS, STEPS * 16)
    assert set(counts["filtered"]) <= {"dapo_dynamic_sampling", "stale"}
    verified = start(config, "replay", "--verify", file="verify.yaml")
    assert await verified.ends() == 0, verified.output
    assert f"{STEPS + 2} of {STEPS + 2} are bit-identical" in verified.output


@pytest.mark.chaos
async def test_epochs_of_filtered_rows_end_with_a_smaller_step(start, config) -> None:
    config["buffer"] |= {"total_steps": None, "total_epochs": 1}
    config["data_processor"]["experience_pipeline"]["operators"] = [{"name": "reward_filter", "args": {"threshold": 1}}]
    run = start(config)
    assert await run.ends() == 0, run.output
    counts = _counts(run)
    assert (counts["released"], counts["published"]) == (32, 128)
    assert counts["trained"] + counts["filtered"]["reward_filter"] == 128
    assert -(-counts["trained"] // 19) <= counts["steps"] <= -(-counts["trained"] // 16)  # groups are not parted
    assert f" trained, {counts['filtered']['reward_filter']} filtered (reward_filter), 0 waiting, " in run.output


@pytest.mark.chaos
async def test_what_a_slow_explorer_samples_is_trained_on_later_and_within_the_bound(start, config, server) -> None:
    """Over-rollout: half a batch may be slow while the next ones are sampled, and nothing is given up for it."""
    config["bus"]["url"] = server.url
    config["data_processor"] = {}
    config["synchronizer"] |= {"sync_style": "dynamic_by_explorer", "max_staleness": 3, "sync_offset": 0}
    config["explorer"] |= {"over_rollout": {"ratio": 0.5}, "runner_per_model": 2}
    slow = copy.deepcopy(config)
    slow["explorer"]["rollout_model"]["extra_engine_args"] = {"delay_s_per_token": 0.25}
    helper = start(slow, "explorer", "--name", "slow", file="slow.yaml")
    run = start(config)
    assert await run.ends() == 0, run.output
    assert await helper.ends() == 0, helper.output
    counts = _counts(run)
    assert (counts["steps"], counts["trained"], counts["filtered"]) == (STEPS, STEPS * 16, {})
    audited = start(config, "audit", "--json", file="audit.yaml")
    assert await audited.ends() == 0, audited.output
    account = json.loads(audited.output[audited.output.index("{\n") :])
    assert account["explorers"]["slow"]["trained"] == account["explorers"]["slow"]["experiences"] > 0
    assert max(map(int, account["staleness"])) <= 3
    assert account["redeliveries"]["groups"] == 0

"""Which configuration of a taskset holds, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from schemas.state import TasksetOffered
from services.rollout.config import TasksetConfig
from services.rollout.offering import differences, located
from services.synchronizer.offers import OfferRefused, config_of, settled


def config(**changes: Any) -> TasksetConfig:
    return TasksetConfig.model_validate({"name": "sums", "path": "hub/sums"} | changes)


def offer(**changes: Any) -> TasksetOffered:
    plain = config().model_dump(mode="json") | changes
    return TasksetOffered(run="p/n", name="sums", config=plain, offered_by="explorer_new", offered_at=1.0)


def test_a_difference_is_named_with_both_values() -> None:
    assert differences(config(), config()) == ""
    found = differences(config(), config(split="test", rollout_args={"temperature": 0.5}))
    assert found == "split: 'train' in the run, 'test' here; rollout_args: {} in the run, {'temperature': 0.5} here"


def test_sizes_that_the_run_decides_are_no_difference() -> None:
    assert differences(config(), config(batch_size=8, total_steps=3, total_epochs=9, repeat_times=2)) == ""


def test_one_path_written_in_two_ways_is_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sums.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    assert located(config(path="sums.jsonl")).path == str(tmp_path / "sums.jsonl")
    assert differences(config(path="sums.jsonl"), config(path=str(tmp_path / "sums.jsonl"))) == ""


def test_our_own_configuration_holds_unless_the_recorded_rows_are_others() -> None:
    hotter = config(rollout_args={"temperature": 2.0})
    assert settled(config(), hotter) == hotter
    assert settled(config(), config(path="hub/other")) == config()
    assert settled(config(), None) == config()


def test_an_offer_carries_its_configuration() -> None:
    assert config_of(offer()) == config()


def test_an_offer_that_is_no_taskset_is_refused_with_its_problem() -> None:
    with pytest.raises(OfferRefused, match=r"not configured as a taskset .batch_size: .*correct it"):
        config_of(offer(batch_size="many"))
    with pytest.raises(OfferRefused, match="the configuration of 'others'"):
        config_of(offer(name="others"))

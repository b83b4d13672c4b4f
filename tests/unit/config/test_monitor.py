"""The arguments of a record are its own, and what is shared with others holds no secret."""

import pytest

from services.config.availability import notices, unavailable
from services.config.checks.monitor import MONITOR_CHECKS
from services.config.secrets import shareable
from services.config.tree import RunConfig


def _config(kind: str, **arguments: object) -> RunConfig:
    return RunConfig.model_validate({"monitor": {"monitor_type": kind, "monitor_args": arguments or None}})


def _told(config: RunConfig) -> list[str]:
    return [problem.message for check in MONITOR_CHECKS for problem in check(config)]


@pytest.mark.parametrize(
    ("kind", "arguments", "words"),
    [
        (
            "wandb",
            {"api_keys": "k"},
            "monitor.monitor_args.api_keys: monitor_type=wandb has no such argument: it takes",
        ),
        ("wandb", {"mode": "later"}, "monitor.monitor_args.mode='later': Input should be 'online', 'offline' or"),
        ("mlflow", {"base_url": "u"}, "no such argument: it takes uri, username, password"),
    ],
)
def test_an_argument_that_a_record_does_not_take_is_refused(kind: str, arguments: dict[str, str], words: str) -> None:
    (message,) = _told(_config(kind, **arguments))
    assert words in message


def test_the_arguments_of_trinity_rft_are_taken() -> None:
    assert _told(_config("wandb", base_url="https://wandb.example.org", api_key="k")) == []
    assert _told(_config("mlflow", uri="http://localhost:5000", username="me", password="hush")) == []


def test_tensorboard_takes_none_and_says_so() -> None:
    found = _config("tensorboard", api_key="k")
    assert _told(found) == []
    assert "monitor.monitor_args has no effect: monitor.monitor_type=tensorboard takes none" in notices(found)


def test_swanlab_is_not_there_yet() -> None:
    assert (
        "not available yet: monitor.monitor_type=swanlab (set tensorboard or wandb or mlflow instead)"
        in unavailable(_config("swanlab"))
    )


def test_what_others_see_of_a_configuration_holds_no_secret() -> None:
    found = RunConfig.model_validate(
        {
            "monitor": {"monitor_type": "mlflow", "monitor_args": {"username": "me", "password": "hush"}},
            "buffer": {"explorer_output": {"storage_type": "sql", "path": "postgresql://me:hush@host:1/db"}},
            "bus": {"url": "nats://one:4222,nats://two:4222"},
        }
    )
    shown = shareable(found)
    assert "hush" not in str(shown)
    assert shown["monitor"]["monitor_args"] == {"username": "me", "password": "***"}
    assert shown["buffer"]["explorer_output"]["path"] == "postgresql://me:***@host:1/db"
    assert shown["bus"]["url"] == "nats://one:4222,nats://two:4222"

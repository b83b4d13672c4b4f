"""How a bus is joined is checked before anything starts."""

from pathlib import Path

import pytest
import yaml

from services.config.errors import ConfigError
from services.config.load import load


def written(root: Path, mode: str = "train", **bus: object) -> Path:
    taskset = {"name": "t", "path": "t.jsonl"}
    document = {
        "mode": mode,
        "model": {"model_path": "none", "max_prompt_tokens": 8, "max_response_tokens": 8},
        "buffer": {"batch_size": 2, "total_steps": 1, "explorer_input": {"taskset": taskset}},
        "bus": bus,
    }
    path = root / "run.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("bus", "problem"),
    [
        ({"url": "nats://a:1", "replicas": 2}, "bus.replicas=2: use 1, or 3"),
        ({"replicas": 3}, "bus.replicas=3 needs a cluster"),
        ({"url": "tls://a:1", "tls_cert": "c.pem"}, "bus.tls_cert and bus.tls_key belong together"),
        ({"credentials": "here"}, "bus.credentials is for a bus that is there"),
        ({"tls_ca": "ca.pem"}, "bus.tls_ca is for a bus that is there"),
    ],
)
def test_what_cannot_be_joined_is_told(tmp_path: Path, bus: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load(written(tmp_path, "both", **bus))


def test_credentials_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_BUS_CREDENTIALS", "/etc/trinity/credentials")
    found = load(written(tmp_path, "train", url="tls://a:1,tls://b:1,tls://c:1", replicas=3))
    assert found.config.bus.credentials == "/etc/trinity/credentials"
    assert found.origins["bus.credentials"] == "environment TRINITY_BUS_CREDENTIALS"

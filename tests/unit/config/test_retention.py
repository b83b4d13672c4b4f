"""What `buffer.retain` may say."""

import pytest

from services.config.retention import Retention, retention


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("all", Retention("all")),
        ("checkpoint", Retention("checkpoint")),
        ("50%", Retention("size", 500.0)),
        ("2KiB", Retention("size", 2048.0)),
        ("1.5 MiB", Retention("size", 1.5 * 2**20)),
        ("7d", Retention("age", 7 * 86400.0)),
        ("90s", Retention("age", 90.0)),
    ],
)
def test_a_rule_is_read(text: str, rule: Retention) -> None:
    assert retention(text, limit_bytes=1000) == rule


@pytest.mark.parametrize("text", ["", "some", "50", "120%", "7 weeks", "-1d", "1GB"])
def test_what_is_no_rule_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="use all, checkpoint, a size"):
        retention(text, limit_bytes=1000)

"""Small configurations, written to files as people write them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from services.config.errors import ConfigError
from services.config.load import Loaded, load

MINIMAL = """\
project: p
name: n
algorithm:
  algorithm_type: grpo
  repeat_times: 8
model:
  model_path: some/model
buffer:
  batch_size: 4
  explorer_input:
    taskset:
      name: sums
      path: sums.jsonl
"""


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CHECKPOINT_ROOT_DIR", "BUS_URL", "PLUGIN_DIRS", "LOG_LEVEL", "LOG_DIR"):
        monkeypatch.delenv(f"TRINITY_{variable}", raising=False)


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Loaded]:
    """Loads MINIMAL with `extra` lines below it (from line 14 on), or another text, as the file `c.yaml`."""
    monkeypatch.chdir(tmp_path)

    def read(*overrides: str, extra: str = "", text: str = MINIMAL) -> Loaded:
        Path("c.yaml").write_text(text + extra, encoding="utf-8")
        return load("c.yaml", overrides)

    return read


@pytest.fixture
def refused(loaded: Callable[..., Loaded]) -> Callable[..., list[str]]:
    """As `loaded`, for configurations that must be refused: the problems as people read them."""

    def read(*overrides: str, **texts: str) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            loaded(*overrides, **texts)
        assert str(caught.value).startswith(f"c.yaml: {len(caught.value.problems)} problem")
        return [str(problem) for problem in caught.value.problems]

    return read

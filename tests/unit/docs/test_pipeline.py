"""What the guide to the experience pipeline says of operators is what they do."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from schemas.experiences import Experience
from services.config.operators import OPERATORS
from services.rollout.config import ExperiencePipelineConfig
from services.rollout.plugins import load_plugins
from services.trainer.pipeline import registry
from services.trainer.pipeline.pipeline import Pipeline, Stage

GUIDE = (Path(__file__).parents[3] / "docs" / "pipeline.md").read_text(encoding="utf-8")
NAME = "shortest_answers"


@pytest.fixture
def _clean_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_OPERATORS", dict(registry.BUILT_IN))
    yield
    sys.modules.pop("trinity_plugin_shortest", None)


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_told_with_its_arguments_and_their_defaults(name: str) -> None:
    told = re.findall(rf"^\| `{name}` \|([^|]*)\|", GUIDE, re.MULTILINE)[0]
    for argument, default in OPERATORS[name].items():
        written = default if isinstance(default, str) else json.dumps(default)
        needle = f"`{argument}`" if default in (None, []) else f"`{argument}: {written}`"
        assert needle in told


def test_the_default_of_refill_is_the_one_in_the_example() -> None:
    assert f"refill_batches: {ExperiencePipelineConfig().refill_batches}\n" in GUIDE


@pytest.mark.usefixtures("_clean_table")
def test_the_operator_of_the_guide_keeps_the_shortest(tmp_path: Path) -> None:
    (source,) = re.findall(r"^```python\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    (tmp_path / "shortest.py").write_text(source, encoding="utf-8")
    load_plugins([tmp_path])
    operator = registry.operator_named(NAME)
    registry.check_arguments(NAME, operator, {"count": 2})
    pipeline = Pipeline((Stage(NAME, operator, {"count": 2}),))
    passed = pipeline.passed(tuple(_experience(position, length) for position, length in enumerate((3, 1, 5, 1))), 1)
    assert [(each.position, each.response_length) for each in passed.kept] == [(1, 1), (3, 1)]
    assert (passed.filtered, passed.metrics) == ({NAME: 2}, {"all_lengths": 2.5})


def _experience(position: int, length: int) -> Experience:
    return Experience(
        position=position,
        tokens=np.arange(2 + length, dtype=np.int32),
        prompt_length=2,
        action_mask=np.ones(length, np.uint8),
        logprobs=np.full(length, -1.0, np.float32),
        token_versions=np.zeros(length, np.int32),
        reward=0.0,
    )

"""What the page on algorithms says of types, parts and defaults is what the tables say."""

import re
from pathlib import Path
from typing import get_args

import pytest

from services.config.algorithms.loss_arguments import AggregationMode, CorrectedLoss, MixedLoss
from services.config.algorithms.parts import ADVANTAGES, ENTROPY_LOSSES, KL_FNS, POLICY_LOSSES, Part
from services.config.algorithms.types import ALGORITHM_TYPES

GUIDE = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text(encoding="utf-8")
NAMED_ONCE = {
    "loss_agg_mode",
    "step_reward_key",
    "env_state_hash_key",
    *MixedLoss.model_fields,
    *CorrectedLoss.model_fields,
}
"""Arguments that several parts share, or that are fixed: a row tells of them where its default is one of its own."""


def _rows(title: str) -> dict[str, list[str]]:
    """The rows of a section's first table, by each name in their first cell."""
    section = GUIDE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    rows = [re.split(r" \| ", line.strip("| ")) for line in section.splitlines() if line.startswith("| `")]
    return {name: cells[1:] for cells in rows for name in re.findall(r"`([^`]+)`", cells[0])}


def _written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:f}" if isinstance(value, float) and 0 < value < 1e-4 else str(value)


@pytest.mark.parametrize("name", ALGORITHM_TYPES)
def test_a_type_is_told_with_its_parts(name: str) -> None:
    kind = ALGORITHM_TYPES[name]
    told = [re.split(r"[`,]+", cell.strip("`| "))[0] for cell in _rows("Types")[name]]
    parts = [kind.advantage_fn, kind.policy_loss_fn, kind.kl_loss_fn, kind.entropy_loss_fn, kind.sample_strategy]
    assert told == [str(kind.repeat_times), *parts]


def test_nothing_is_told_that_is_not_there() -> None:
    assert _rows("Types").keys() == ALGORITHM_TYPES.keys()
    assert _rows("Policy losses").keys() == POLICY_LOSSES.keys() | {"loss_agg_mode", *get_args(AggregationMode)}
    assert _rows("Advantages").keys() == ADVANTAGES.keys()


@pytest.mark.parametrize(
    ("title", "name", "part"),
    [
        *(("Policy losses", name, part) for name, part in POLICY_LOSSES.items()),
        *(("Advantages", name, part) for name, part in ADVANTAGES.items()),
    ],
)
def test_the_arguments_of_a_part_are_told_with_their_defaults(title: str, name: str, part: Part) -> None:
    told = _rows(title)[name][-1]
    for argument, default in part.defaults().items():
        if argument in NAMED_ONCE and f"`{argument}: " not in told:
            continue
        assert (f"`{argument}`" if default is None else f"`{argument}: {_written(default)}`") in told.replace(
            ": null", ""
        )


@pytest.mark.parametrize("name", [*KL_FNS, *ENTROPY_LOSSES])
def test_every_kl_and_entropy_term_is_told(name: str) -> None:
    assert f"`{name}`" in GUIDE.split("## KL and entropy\n", 1)[1].split("\n## ", 1)[0]

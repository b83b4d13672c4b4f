"""veRL's metrics under the names that Trinity-RFT gives them."""

from collections.abc import Sequence as Rows
from typing import Any, Literal

from services.trainer.backends.packing import Layout
from services.trainer.backends.port import Sequence

_RENAMED = {
    "actor": {
        "grad_norm": "actor/grad_norm",
        "lr": "actor/lr",
        "loss": "actor/final_loss",
        "mfu": "perf/mfu/actor",
    },
    "critic": {
        "grad_norm": "critic/grad_norm",
        "lr": "critic/lr",
        "mfu": "perf/mfu/critic",
    },
}
_LEFT_OUT = {"actor": set[str](), "critic": {"loss"}}  # critic/vf_loss says the same


def seqlen(sequences: Rows[Sequence], layout: Layout) -> dict[str, float]:
    """Tokens that each rank gets of a batch: as it came, and `balanced`, as it is parted; the mean is that of both."""
    places = layout.places(sequences)
    share = len(places) // layout.ranks
    lengths = [len(sequence.tokens) for sequence in sequences]
    parted = [lengths[place] if place is not None else 0 for place in places]
    came = [*lengths, *([0] * (len(places) - len(lengths)))]
    before, after = (
        [float(sum(each[rank * share : (rank + 1) * share])) for rank in range(layout.ranks)] for each in (came, parted)
    )
    return {
        "global_seqlen/min": min(before),
        "global_seqlen/max": max(before),
        "global_seqlen/minmax_diff": max(before) - min(before),
        "global_seqlen/balanced_min": min(after),
        "global_seqlen/balanced_max": max(after),
        "global_seqlen/mean": sum(lengths) / layout.ranks,
    }


def named(metrics: dict[str, Any], model: Literal["actor", "critic"] = "actor") -> dict[str, float]:
    """Plain numbers by Trinity-RFT's names; lists are averaged, veRL's `Metric` objects aggregated."""
    return {
        _RENAMED[model].get(name, name): number
        for name, value in metrics.items()
        if name not in _LEFT_OUT[model] and (number := _number(value)) is not None
    }


def _number(value: Any) -> float | None:
    values = value if isinstance(value, list) else [value]
    numbers = [item.aggregate() if hasattr(item, "aggregate") else item for item in values]
    flat = [float(number) for number in numbers if isinstance(number, int | float)]
    return sum(flat) / len(flat) if flat else None

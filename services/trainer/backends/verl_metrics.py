"""veRL's metrics under the names that Trinity-RFT gives them."""

from typing import Any, Literal

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

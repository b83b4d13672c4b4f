"""veRL's metrics under the names that Trinity-RFT gives them."""

from typing import Any

_RENAMED = {
    "grad_norm": "actor/grad_norm",
    "lr": "actor/lr",
    "loss": "actor/final_loss",
    "kl_loss": "actor/kl_loss",
    "kl_coef": "actor/kl_coef",
    "mfu": "perf/mfu/actor",
}


def named(metrics: dict[str, Any]) -> dict[str, float]:
    """Plain numbers by Trinity-RFT's names; lists are averaged, veRL's `Metric` objects aggregated."""
    return {
        _RENAMED.get(name, name): number for name, value in metrics.items() if (number := _number(value)) is not None
    }


def _number(value: Any) -> float | None:
    values = value if isinstance(value, list) else [value]
    numbers = [item.aggregate() if hasattr(item, "aggregate") else item for item in values]
    flat = [float(number) for number in numbers if isinstance(number, int | float)]
    return sum(flat) / len(flat) if flat else None

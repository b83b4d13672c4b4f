"""Frozen lakes to walk over, small enough for a small model."""

LAKES = 64
FROZEN_SHARE = 0.8


def lakes(number: int = LAKES) -> list[dict[str, object]]:
    """Rows `{"size", "p", "seed"}`, as `frozen_lake_workflow` takes them: lakes of 3 x 3 and of 4 x 4 in turn."""
    return [{"size": 3 + seed % 2, "p": FROZEN_SHARE, "seed": seed} for seed in range(number)]

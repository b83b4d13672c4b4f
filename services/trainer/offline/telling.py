"""What a step on rows of data says: nothing of rewards, and nothing of the weights that sampled. Pure."""

_OF_SAMPLING = ("critic/", "sample/model_version")


def of_rows(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics that mean something where nobody has sampled and nothing was scored."""
    return {name: value for name, value in metrics.items() if not name.startswith(_OF_SAMPLING)}

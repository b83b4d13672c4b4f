"""Draws the exact match of a run, by step and as evaluated, from its summary: the picture in the README.

python benchmarks/quickstart_picture.py checkpoints/quickstart/addition/summary.json docs/images/quickstart.svg
"""

import json
import sys
from pathlib import Path


def draw(summary_path: Path, picture_path: Path) -> None:
    """Read one `summary.json` and write one picture."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    summary = json.loads(summary_path.read_text(encoding="utf-8"))
    steps = range(1, summary["steps"] + 1)
    judged = [(found["version"], found["metrics"]["accuracy/mean@1"]) for found in summary["evaluations"]]
    figure, axes = pyplot.subplots(figsize=(7, 3))
    axes.plot(steps, summary["accuracy_by_step"], label="sampled while training (temperature 1)")
    axes.plot(*zip(*judged, strict=True), "o", label="evaluated (greedy)")
    axes.set(xlabel="step", ylabel="exact match", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", frameon=False)
    figure.tight_layout()
    picture_path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture_path, metadata={"Date": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))

"""Trains the tiny model by one algorithm after another, each a whole run of the real stack, and draws the rewards.

python benchmarks/learning/measure.py [--types grpo,rloo] [--json rewards.json] [--picture docs/images/learning.svg]

A run makes 30 steps of 64 answers, 8 to a task, at most one step off-policy; the reward is the share of a response's
characters that are digits. Every algorithm has its own defaults, but for what TYPES says.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DATA, MODEL = ROOT / ".cache/learning/digits.jsonl", ROOT / ".cache/tiny"
CRITIC_LR = "trainer.trainer_config.critic.optim.lr"
TYPES: dict[str, dict[str, object]] = {
    "grpo": {},
    "dapo": {},
    "gspo": {},
    "cispo": {},
    "sapo": {},
    "topr": {},
    "rloo": {},
    "reinforceplusplus": {},
    "remax": {},
    "ppo": {CRITIC_LR: 5e-3},
    "opmd": {},
    "pairwise_opmd": {},
    "asymre": {},
    "sppo": {},
    "rec": {},
    "decoupled_ppo": {},
    "tis": {},
    "icepop": {},
    "geo_mask": {},
    "dppo_tv": {},
}


def measured(name: str, settings: dict[str, object], root: Path) -> list[float]:
    """The mean reward of each step of one run."""
    sets = {"name": name, "algorithm.algorithm_type": name, "checkpoint_root_dir": root, **settings}
    command = [sys.executable, "-m", "services.cli", "run", "--config", str(HERE / "base.yaml")]
    command += ["--plugin-dir", str(HERE)]
    command += [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    summary = json.loads((root / "learning" / name / "summary.json").read_text(encoding="utf-8"))
    found: list[float] = summary["accuracy_by_step"]
    return found


def draw(curves: dict[str, list[float]], path: Path) -> None:
    """All curves in one picture."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams["svg.fonttype"] = "none"
    columns = 5
    rows = -(-len(curves) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(10, 1.6 * rows), sharex=True, sharey=True, squeeze=False)
    for place in axes.flat[len(curves) :]:
        place.axis("off")
    for place, (name, rewards) in zip(axes.flat, curves.items(), strict=False):
        place.plot(range(1, len(rewards) + 1), rewards)
        place.set_title(name, fontsize=8)
        place.set_ylim(0, 1)
        place.grid(alpha=0.3)
    figure.supxlabel("step", fontsize=8)
    figure.supylabel("mean reward", fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--types", default=",".join(TYPES))
    arguments.add_argument("--root", type=Path, default=ROOT / "checkpoints")
    arguments.add_argument("--picture", type=Path)
    arguments.add_argument("--json", type=Path, help="where to keep the rewards, by type and step")
    given = arguments.parse_args()
    _prepare()
    curves: dict[str, list[float]] = {}
    print("| algorithm_type | steps 1 to 3 | 14 to 16 | 28 to 30 |\n|---|---|---|---|")  # noqa: T201
    for name in given.types.split(","):
        curves[name] = measured(name, TYPES.get(name, {}), given.root)
        means = (fmean(curves[name][first - 1 : first + 2]) for first in (1, 14, 28))
        print(f"| `{name}` | " + " | ".join(f"{mean:.2f}" for mean in means) + " |", flush=True)  # noqa: T201
    if given.json:
        given.json.write_text(json.dumps(curves) + "\n", encoding="utf-8")
    if given.picture:
        draw(curves, given.picture)


def _prepare() -> None:
    command = [sys.executable, "-m", "services.cli", "prepare", "--tiny", "--into", str(MODEL)]
    subprocess.run(command, check=True, cwd=ROOT)
    DATA.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"prompt": f"{number}:", "answer": ""}) for number in range(256)]
    DATA.write_text("\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Trains one model twice, by veRL's own trainer functions and by ours, and prints both side by side, step by step.

python -m benchmarks.alignment.compare [--model DIRECTORY] [--steps 3] [--prompts 4] [--group 4]

Everything is in float32 on the CPU. Without --model it is a Llama of a hundred thousand random parameters.
"""

import argparse
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from services.trainer.backends.verl_platform import ENVIRONMENT

os.environ.update(ENVIRONMENT)  # veRL chooses its platform when it is imported

from benchmarks.alignment import ours, theirs
from benchmarks.alignment.answers import rounds
from benchmarks.alignment.cases import CASES, Case, Scale
from benchmarks.alignment.trace import COMPARED, Step, furthest

MAX_TOKENS = 12


@dataclass(frozen=True)
class Compared:
    """The steps of a case by both sides."""

    case: Case
    by_verl: list[Step]
    by_us: list[Step]


def compared(scale: Scale, directory: Path, cases: tuple[Case, ...] = CASES) -> list[Compared]:
    """Every case by both sides, on the same answers."""
    answers = rounds(scale.model_path, scale.steps, scale.prompts, scale.group, MAX_TOKENS)
    with theirs.started(scale, directory / "verl") as verl_side:
        by_verl = [verl_side.trained(case, answers) for case in cases]
    with ours.started(scale, directory / "ours") as our_side:
        by_us = [our_side.trained(case, answers) for case in cases]
    return [Compared(*each) for each in zip(cases, by_verl, by_us, strict=True)]


def critic_of(model_path: Path, into: Path) -> Path:
    """The model with one number a token in place of its head, random but the same for both sides."""
    import torch
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    torch.manual_seed(0)
    model = AutoModelForTokenClassification.from_pretrained(model_path, num_labels=1, dtype=torch.float32)
    model.save_pretrained(into)
    AutoTokenizer.from_pretrained(model_path).save_pretrained(into)
    return into


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=4)
    parser.add_argument("--lr", type=float)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        model_path = given.model or _tiny(directory)
        lr = given.lr or (1e-5 if given.model else 1e-3)
        critic_path = critic_of(model_path, directory / "critic")
        scale = Scale(model_path, critic_path, given.prompts, given.group, given.steps, lr, 10 * lr)
        for each in compared(scale, directory):
            sys.stdout.write("\n".join([*table(each), ""]))


def table(compared: Compared) -> list[str]:
    """The lines that show a case."""
    lines = [f"\n{compared.case.name}", f"{'step':<5}{'':<26}{'veRL':>16}{'ours':>16}{'difference':>12}"]
    for number, (their, our) in enumerate(zip(compared.by_verl, compared.by_us, strict=True), start=1):
        for name, our_name in COMPARED.items():
            if name in their.metrics:
                one, other = float(their.metrics[name]), our.metrics[our_name]
                lines.append(f"{number:<5}{name:<26}{one:>16.9f}{other:>16.9f}{abs(one - other):>12.1e}")
        for model, weights in their.weights.items():
            distance = furthest(weights, our.weights[model])
            lines.append(f"{number:<5}{f'largest difference of the {model}s weights':<58}{distance:>12.1e}")
    return lines


def _tiny(directory: Path) -> Path:
    from services.prepare.tiny import prepare_tiny

    prepare_tiny(directory)
    return directory / "model"


if __name__ == "__main__":
    main()

"""Importing what the synchronizer needs loads no heavy library."""

import subprocess
import sys

HEAVY = {"torch", "transformers", "datasets", "reasoning_gym", "math_verify", "sympy", "vllm", "pandas"}
MODULES = (
    "services.rollout.workflows, services.rollout.mixture, services.rollout.tasks, services.rollout.runner, "
    "services.rollout.scores, services.rollout.plugins, services.inference.fake, services.prepare.quickstart, "
    "services.prepare.tiny"
)


def test_rollout_imports_no_heavy_library() -> None:
    code = f"import sys, {MODULES}; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert HEAVY & set(loaded) == set()

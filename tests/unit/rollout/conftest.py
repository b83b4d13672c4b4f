"""Released tasks and policies on the shipped fake engine."""

from collections.abc import Callable
from typing import Any

import pytest

from schemas.tasks import TaskIdentity, TaskReleased
from services.inference.engine import Sampling
from services.inference.fake import FakeEngine
from services.rollout.policy import Policy, Prompting


@pytest.fixture
def released_task() -> Callable[..., TaskReleased]:
    def make(**changes: Any) -> TaskReleased:
        values: dict[str, Any] = {
            "run": "p/n",
            "task": TaskIdentity(ordinal=3, batch=0, taskset="sums", epoch=1, index=2),
            "repeat_times": 1,
            "workflow": "exact_match_workflow",
            "row": {"prompt": "2+2=", "answer": "4"},
            "format_args": {"prompt_type": "plaintext", "response_key": "answer"},
        }
        return TaskReleased(**(values | changes))

    return make


@pytest.fixture
def policy_of() -> Callable[..., Policy]:
    """A policy on a fake engine; `replies` by the text of the prompt."""

    def make(replies: dict[str, str] | None = None, sampling: Sampling | None = None, **prompting: Any) -> Policy:
        engine = FakeEngine(replies=replies)
        return Policy(engine, sampling or Sampling(max_tokens=200), Prompting(**prompting))

    return make

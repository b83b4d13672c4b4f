"""Experiences with chosen rewards, scores, lengths and weight versions."""

from collections.abc import Callable

import numpy as np
import pytest

from schemas.experiences import Experience, GroupSampled
from schemas.tasks import TaskIdentity

RUN = "tests/pipeline"


def answer(position: int, reward: float, **changes: object) -> Experience:
    """An answer of `length` tokens (3), sampled by `version` (0)."""
    length, version = int(changes.pop("length", 3)), int(changes.pop("version", 0))  # type: ignore[call-overload]
    return Experience(
        position=position,
        tokens=np.arange(2 + length, dtype=np.int32),
        prompt_length=2,
        action_mask=np.ones(length, np.uint8),
        logprobs=np.full(length, -1.0, np.float32),
        token_versions=np.full(length, version, np.int32),
        reward=reward,
        **changes,  # type: ignore[arg-type]
    )


@pytest.fixture
def answers() -> Callable[..., tuple[Experience, ...]]:
    """The answers to one task, of these rewards."""

    def make(*rewards: float, **changes: object) -> tuple[Experience, ...]:
        return tuple(answer(position, reward, **changes) for position, reward in enumerate(rewards))

    return make


@pytest.fixture
def group() -> Callable[..., GroupSampled]:
    def make(ordinal: int, *rewards: float, **changes: object) -> GroupSampled:
        return GroupSampled(
            run=RUN,
            task=TaskIdentity(ordinal=ordinal, batch=0, taskset="sums", epoch=0, index=ordinal),
            repeat_times=len(rewards),
            explorer="e",
            experiences=tuple(answer(position, reward, **changes) for position, reward in enumerate(rewards)),
        )

    return make

"""Groups of two, whose tokens, versions and times a test chooses."""

from collections.abc import Callable

import numpy as np
import pytest

from schemas.experiences import Experience, GroupSampled, TaskAbandoned
from schemas.tasks import TaskIdentity

RUN = "tests/reuse"
GROUP = 2


def _identity(ordinal: int) -> TaskIdentity:
    return TaskIdentity(ordinal=ordinal, batch=0, taskset="sums", epoch=0, index=ordinal)


def _experience(position: int, token: int, version: int, reward: float) -> Experience:
    return Experience(
        position=position,
        tokens=np.full(5, token, dtype=np.int32),
        prompt_length=2,
        action_mask=np.ones(3, np.uint8),
        logprobs=np.full(3, -1.0, np.float32),
        token_versions=np.full(3, version, np.int32),
        reward=reward,
    )


@pytest.fixture(scope="session")
def group() -> Callable[..., GroupSampled]:
    def make(ordinal: int, version: int = 0, at: float = 0.0, rewards: tuple[float, ...] = (0.0, 1.0)) -> GroupSampled:
        return GroupSampled(
            run=RUN,
            task=_identity(ordinal),
            repeat_times=GROUP,
            explorer="e",
            experiences=tuple(_experience(n, ordinal, version, reward) for n, reward in enumerate(rewards)),
            finished_at=at,
        )

    return make


@pytest.fixture(scope="session")
def abandoned() -> Callable[..., TaskAbandoned]:
    def make(ordinal: int, at: float = 0.0) -> TaskAbandoned:
        return TaskAbandoned(
            run=RUN,
            task=_identity(ordinal),
            repeat_times=GROUP,
            explorer="e",
            attempts=4,
            error="no",
            abandoned_at=at,
        )

    return make

"""Groups and tombstones as the trainer reads them."""

from collections.abc import Callable

import numpy as np
import pytest

from schemas.experiences import Experience, GroupSampled, TaskAbandoned
from schemas.tasks import TaskIdentity

RUN = "tests/trainer"


def _identity(ordinal: int) -> TaskIdentity:
    return TaskIdentity(ordinal=ordinal, batch=ordinal // 2, taskset="sums", epoch=0, index=ordinal)


@pytest.fixture
def group() -> Callable[..., GroupSampled]:
    def make(ordinal: int, rewards: tuple[float, ...] = (0.0, 0.0, 1.0, 1.0), run: str = RUN) -> GroupSampled:
        experiences = tuple(
            Experience(
                position=position,
                tokens=np.arange(5, dtype=np.int32),
                prompt_length=2,
                action_mask=np.ones(3, np.uint8),
                logprobs=np.full(3, -1.0, np.float32),
                token_versions=np.full(3, 4, np.int32),
                reward=reward,
                metrics={"accuracy": reward},
            )
            for position, reward in enumerate(rewards)
        )
        return GroupSampled(
            run=run, task=_identity(ordinal), repeat_times=len(rewards), explorer="e", experiences=experiences
        )

    return make


@pytest.fixture
def abandoned() -> Callable[[int], TaskAbandoned]:
    def make(ordinal: int) -> TaskAbandoned:
        return TaskAbandoned(
            run=RUN, task=_identity(ordinal), repeat_times=4, explorer="e", attempts=4, error="it would not"
        )

    return make

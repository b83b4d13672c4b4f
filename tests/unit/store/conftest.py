"""Messages as a stream holds them, and their rows."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from schemas.experiences import Experience, GroupSampled, TaskAbandoned
from schemas.tasks import TaskIdentity
from services.account.table import abandoned_row, row
from services.store.messages import Answer, Row

RUN = "tests/stored"


def _identity(ordinal: int) -> TaskIdentity:
    return TaskIdentity(ordinal=ordinal, batch=ordinal // 2, taskset="sums", epoch=1, index=ordinal)


def _experience(position: int, step: int, chance: np.random.Generator) -> Experience:
    length = int(chance.integers(1, 6))
    return Experience(
        position=position,
        step=step,
        tokens=chance.integers(0, 2**31 - 1, 3 + length).astype(np.int32),
        prompt_length=3,
        action_mask=chance.integers(0, 2, length).astype(np.uint8),
        logprobs=(-np.exp(chance.normal(0, 8, length))).astype(np.float32),
        token_versions=chance.integers(0, 9, length).astype(np.int32),
        teacher_logprobs=-chance.random(length, np.float32) if position else [],
        reward=float(chance.normal()),
        metrics={"accuracy": float(position % 2), "format_score": 0.1},
        prompt_text=f'{position}+1="\n',
        response_text="½ \\ 二",
        is_truncated=bool(position % 2),
        temperature=0.7,
        state=f"s{step}",
        step_reward=0.25 if step else None,
    )


@pytest.fixture
def group() -> Callable[..., GroupSampled]:
    def make(ordinal: int, size: int = 2, run: str = RUN) -> GroupSampled:
        chance = np.random.default_rng(ordinal)
        return GroupSampled(
            run=run,
            task=_identity(ordinal),
            repeat_times=size + 1,
            explorer="explorer_2",
            incarnation=3,
            experiences=tuple(_experience(place // 2, place % 2, chance) for place in range(2 * size)),
            attempt=2,
            started_at=1_700_000_000.25,
            finished_at=1_700_000_001.5,
            tokenizer="sha256:abc",
            retry=1,
        )

    return make


@pytest.fixture
def abandoned() -> Callable[..., TaskAbandoned]:
    def make(ordinal: int, run: str = RUN) -> TaskAbandoned:
        return TaskAbandoned(
            run=run,
            task=_identity(ordinal),
            repeat_times=4,
            explorer="explorer_1",
            attempts=4,
            error="no answer within 30 s",
            abandoned_at=1_700_000_002.75,
        )

    return make


def rows_of(sequence: int, answer: Answer) -> list[Row]:
    stored_at = 1_700_000_000.0 + sequence
    if isinstance(answer, TaskAbandoned):
        return [abandoned_row(sequence, answer, stored_at)]
    return [row(sequence, answer, experience, stored_at) for experience in answer.experiences]


@pytest.fixture
def rows() -> Callable[[Sequence[tuple[int, Answer]]], list[Row]]:
    """The rows of messages at their sequences."""

    def make(stream: Sequence[tuple[int, Answer]]) -> list[Row]:
        return [each for sequence, answer in stream for each in rows_of(sequence, answer)]

    return make

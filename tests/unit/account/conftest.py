"""Streams of answers as explorers publish them, and what a trainer makes of them."""

from collections.abc import Callable

import numpy as np
import pytest

from bus.delivery import LogDelivery
from schemas.experiences import Experience, GroupSampled, TaskAbandoned
from schemas.message import Message
from schemas.tasks import TaskIdentity
from services.account.books import Books
from services.account.fates import seen
from services.account.reckoning import Account, Reckoning
from services.trainer.intake import Intake
from services.trainer.ledger import Ledger

RUN = "tests/account"
GROUP = 4
BATCH = 8


def _identity(ordinal: int) -> TaskIdentity:
    return TaskIdentity(ordinal=ordinal, batch=ordinal // 2, taskset="sums", epoch=0, index=ordinal)


class Stream:
    """An experience stream: messages by sequence, from 1 on, None where garbage lies. `refused` can be read."""

    def __init__(self) -> None:
        self.messages: list[Message | None] = []
        self.refused: set[int] = set()

    def group(
        self, ordinal: int, version: int = 0, attempt: int = 1, is_refused: bool = False, finished_at: float = 0.0
    ) -> "Stream":
        experience = Experience(
            position=0,
            tokens=np.arange(5, dtype=np.int32),
            prompt_length=2,
            action_mask=np.ones(3, np.uint8),
            logprobs=np.full(3, -1.0, np.float32),
            token_versions=np.full(3, version, np.int32),
            reward=1.0,
        )
        each = tuple(experience.model_copy(update={"position": position}) for position in range(GROUP))
        task = _identity(ordinal)
        self.messages.append(
            GroupSampled(
                run=RUN,
                task=task,
                repeat_times=GROUP,
                explorer="e",
                experiences=each,
                attempt=attempt,
                finished_at=finished_at,
            )
        )
        if is_refused:
            self.refused.add(len(self.messages))
        return self

    def abandoned(self, ordinal: int) -> "Stream":
        task = _identity(ordinal)
        self.messages.append(
            TaskAbandoned(run=RUN, task=task, repeat_times=GROUP, explorer="e", attempts=4, error="it would not")
        )
        return self

    def garbage(self) -> "Stream":
        self.messages.append(None)
        return self

    def trained(
        self,
        steps: int | None = None,
        ledger: Ledger | None = None,
        end: int | None = None,
        is_over: bool = False,
    ) -> list[Ledger]:
        """The ledgers of each step that a trainer commits, by its own intake, up to message `end`.

        What is left after the last full batch waits, or makes a smaller one where the run is over.
        """
        kept: list[Ledger] = []
        ledger = Ledger.from_json(ledger.to_json()) if ledger else Ledger()
        intake = Intake(ledger, BATCH, RUN)
        for sequence, message in enumerate(self.messages[:end], start=1):
            intake.offer(sequence, None if sequence in self.refused else message)
            while intake.ready and (steps is None or ledger.step < steps):
                intake.commit(intake.take(), ledger.step + 1)
                kept.append(Ledger.from_json(ledger.to_json()))
        if is_over and intake.ready == 0:
            rest = intake.take()
            intake.commit(rest, ledger.step + (rest.owed > 0))
            kept.append(Ledger.from_json(ledger.to_json()))
        return kept

    def account(self, ledgers: list[Ledger], first: int = 1, released: int = 0, **books: object) -> Account:
        """The account of the stream from sequence `first` on."""
        ledger = ledgers[-1] if ledgers else Ledger()
        held = Books(ledger, "test", tuple(ledgers), **books)  # type: ignore[arg-type]
        reckoning = Reckoning(held, BATCH, first=first, refused=self.refused)
        for sequence, message in enumerate(self.messages, start=1):
            if sequence >= first:
                delivery = LogDelivery(message, None if message else "garbage", sequence, "subject", 0.0, b"")
                reckoning.take(seen(delivery, RUN))
        return reckoning.close(len(self.messages), released=released)


@pytest.fixture(scope="session")
def stream() -> Callable[[], Stream]:
    return Stream

"""Which tasks are lost: every one that is, and none that somebody still works on, whatever the order of events."""

import random

from hypothesis import given
from hypothesis import strategies as st

from schemas.state import Reissued, TrainProgress
from schemas.weights import WeightVersion
from services.synchronizer.recovery import Suspicion, gone, judged, lost, unanswered


def trained(floor: int, above: tuple[int, ...] = (), read: int = 0) -> TrainProgress:
    return TrainProgress(
        weights=WeightVersion(), step=0, answered_floor=floor, answered_above=above, read_sequence=read
    )


def test_what_is_unanswered_is_what_the_trainer_has_not_seen() -> None:
    assert unanswered(3, None) == {0, 1, 2}
    assert unanswered(6, trained(2, (3, 5))) == {2, 4}
    assert unanswered(2, trained(5)) == set()


def test_a_message_that_is_stored_or_behind_a_stored_one_is_not_gone() -> None:
    assert gone([4, 5, 6], {4: 7, 5: 8}, before=3, first=8) == {4, 6}


def test_nothing_is_lost_before_the_trainer_has_read_all_there_was() -> None:
    suspicion = Suspicion(frozenset({4}), mark=9)
    assert lost(suspicion, 5, trained(4, read=8), newest=9) == []
    assert lost(suspicion, 5, trained(4, read=9), newest=9) == [4]
    assert lost(suspicion, 5, trained(5, read=9), newest=9) == []


def test_an_end_of_the_stream_that_was_deleted_is_not_waited_for() -> None:
    assert lost(Suspicion(frozenset({4}), mark=9), 5, trained(4, read=7), newest=7) == [4]


def test_a_task_is_released_again_so_often_and_then_given_up() -> None:
    before = (Reissued(ordinal=1, times=1), Reissued(ordinal=2, times=2))
    verdict = judged([1, 2, 3], before, most=2, known=[1, 2, 3])
    assert (verdict.again, verdict.given_up) == ((1, 3), (2,))
    assert verdict.reissued == tuple(Reissued(ordinal=n, times=t) for n, t in ((1, 2), (2, 3), (3, 1)))
    assert verdict.retry(2) == 3


def test_a_task_whose_message_we_did_not_see_is_released_once_more_rather_than_given_up() -> None:
    assert judged([2], (Reissued(ordinal=2, times=2),), most=2, known=[]).again == (2,)


class Life:
    """Tasks are pulled, answered, acknowledged and read in any order; some messages and some answers vanish."""

    def __init__(self, tasks: int, seed: int) -> None:
        self.tasks, self.chance = tasks, random.Random(seed)
        self.sequences = {ordinal: ordinal + 1 for ordinal in range(tasks)}
        self.queue = dict(self.sequences)
        self.stream: list[int | None] = []
        self.stored: set[int] = set()
        self.answered: set[int] = set()
        self.lost: set[int] = set()
        self.found: set[int] = set()
        self.read = 0
        self.suspicion: Suspicion | None = None

    def work(self) -> None:
        ordinal = self.chance.randrange(self.tasks)
        if ordinal in self.queue:
            self._touch(ordinal, self.chance.random())
        if self.read < len(self.stream) and self.chance.random() < 0.5:
            answer = self.stream[self.read]
            self.answered.update([] if answer is None else [answer])
            self.read += 1

    def _touch(self, ordinal: int, act: float) -> None:
        if act < 0.2 and ordinal not in self.stored:
            self.lost.add(ordinal)
            del self.queue[ordinal]
        elif ordinal in self.stored:
            del self.queue[ordinal]
        else:
            self.lost.update([ordinal] if act < 0.4 else [])
            self.stream.append(None if act < 0.4 else ordinal)
            self.stored.add(ordinal)

    def look(self) -> None:
        floor = next(n for n in range(self.tasks + 1) if n not in self.answered)
        train = trained(floor, tuple(sorted(n for n in self.answered if n > floor)), self.read)
        if self.suspicion is None:
            first = min(self.queue.values(), default=self.tasks + 1)
            suspects = gone(unanswered(self.tasks, train), self.sequences, 0, first)
            self.suspicion = Suspicion(suspects, len(self.stream)) if suspects else None
            return
        self.found.update(lost(self.suspicion, self.tasks, train, newest=len(self.stream)))
        self.suspicion = None if self.read >= self.suspicion.mark else self.suspicion


@given(tasks=st.integers(1, 8), seed=st.integers(0, 100_000))
def test_only_the_lost_are_found_and_all_of_them_in_the_end(tasks: int, seed: int) -> None:
    life = Life(tasks, seed)
    for _ in range(60):
        life.work()
        if life.chance.random() < 0.3:
            life.look()
        assert life.found <= life.lost
    while life.queue or life.read < len(life.stream):
        life.work()
    for _ in range(3):
        life.look()
    assert life.found == life.lost

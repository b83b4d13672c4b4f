"""The pool: groups that have been trained on and may be trained on again, and which of them a step takes. Pure.

Invariant: what a step reuses is a function of the pool before it, of what is fresh in its batch, of the stream's own
time and of the rule. A group enters the pool with its first use, so nothing leaves the pool that was never trained on.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from schemas.experiences import Experience
from services.config.reuse import ReuseRule


@dataclass(frozen=True, slots=True)
class Pooled:
    """A group of the pool: its `sequence` in the stream, its task, the version that sampled its oldest token, what is
    trained on of it in experiences and response tokens, how often it was used, and the stream time of the last use
    (seconds since the epoch)."""

    sequence: int
    ordinal: int
    version: int
    experiences: int
    tokens: int
    uses: int = 1
    used_at: float = 0.0

    @classmethod
    def of(cls, sequence: int, ordinal: int, experiences: Sequence[Experience]) -> Self:
        """The experiences of the answer to task `ordinal` that are trained on, at their first use."""
        return cls(
            sequence=sequence,
            ordinal=ordinal,
            version=min(int(each.token_versions.min()) for each in experiences),
            experiences=len(experiences),
            tokens=sum(each.response_length for each in experiences),
        )


@dataclass(frozen=True)
class Pool:
    """The groups in stream order. `time` is the stream's own: the latest at which an answer to the batches of the steps
    so far was made."""

    groups: tuple[Pooled, ...] = ()
    time: float = 0.0

    @property
    def first(self) -> int | None:
        """The lowest sequence that is held."""
        return self.groups[0].sequence if self.groups else None

    @property
    def experiences(self) -> int:
        return sum(group.experiences for group in self.groups)

    def as_json(self) -> dict[str, Any]:
        return {"time": self.time, "groups": [asdict(group) for group in self.groups]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(tuple(Pooled(**group) for group in value["groups"]), float(value["time"]))


EMPTY = Pool()


@dataclass(frozen=True)
class Drawn:
    """What a step makes of the pool: `reused` are its groups beside the fresh ones, in stream order, this use counted;
    `retired` have had all the uses that the rule gives them, `evicted` had the lowest priorities of too many; both in
    experiences. `pool` is what is left."""

    reused: tuple[Pooled, ...] = ()
    pool: Pool = EMPTY
    retired: int = 0
    evicted: int = 0

    @property
    def experiences(self) -> int:
        """Of the reused groups."""
        return sum(group.experiences for group in self.reused)

    @property
    def tokens(self) -> int:
        return sum(group.tokens for group in self.reused)


NOTHING_DRAWN = Drawn()


def drawn(pool: Pool, rule: ReuseRule, fresh: Sequence[Pooled], step: int, time: float) -> Drawn:
    """Fill step `step` (from 1), which has the groups `fresh`, from the pool, at stream time `time`.

    The groups that may be used again are taken by priority, the highest first and the oldest of equals, as far as they
    fit whole into `rule.train_batch_size` experiences beside the fresh ones. Then all groups of the step are in the
    pool with one use more; those that can have no further use leave it, and, as long as it holds more than
    `rule.capacity` experiences, those of the lowest priorities.
    """
    room = rule.train_batch_size - sum(group.experiences for group in fresh)
    chosen = _chosen(pool.groups, rule, room, step, time)
    used = {group.sequence: replace(group, uses=group.uses + 1, used_at=time) for group in chosen}
    held = [used.get(group.sequence, group) for group in pool.groups] + [replace(g, used_at=time) for g in fresh]
    useful = [group for group in held if not (rule.is_used_up(group.uses) or rule.is_stale(group.version, step + 1))]
    kept = _bounded(useful, rule)
    return Drawn(
        reused=tuple(used[sequence] for sequence in sorted(used)),
        pool=Pool(tuple(sorted(kept, key=lambda group: group.sequence)), time),
        retired=_experiences(held) - _experiences(useful),
        evicted=_experiences(useful) - _experiences(kept),
    )


def _chosen(groups: Iterable[Pooled], rule: ReuseRule, room: int, step: int, time: float) -> list[Pooled]:
    chosen: list[Pooled] = []
    for group in sorted(groups, key=lambda group: (-_priority(group, rule), group.sequence)):
        is_cool = time - group.used_at >= rule.cooldown_s
        is_of_use = not (rule.is_used_up(group.uses) or rule.is_stale(group.version, step))
        if is_cool and is_of_use and group.experiences <= room:
            chosen.append(group)
            room -= group.experiences
    return chosen


def _bounded(groups: list[Pooled], rule: ReuseRule) -> list[Pooled]:
    """Without the lowest priorities, of equals the oldest, as long as there are too many."""
    left = _experiences(groups)
    ranked = sorted(groups, key=lambda group: (_priority(group, rule), group.sequence))
    for place, group in enumerate(ranked):
        if left <= rule.capacity:
            return ranked[place:]
        left -= group.experiences
    return []


def _priority(group: Pooled, rule: ReuseRule) -> float:
    return rule.priority(group.version, group.uses, group.ordinal)


def _experiences(groups: Iterable[Pooled]) -> int:
    return sum(group.experiences for group in groups)

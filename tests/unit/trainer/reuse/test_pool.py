"""What a step takes of the pool, and what it leaves, by the rule alone."""

import math
from statistics import fmean, pstdev

import pytest

from services.config.reuse import ReuseRule, priority_args, standard_normal
from services.trainer.reuse.pool import Drawn, Pool, Pooled, drawn


def _rule(**changes: object) -> ReuseRule:
    return ReuseRule(**{"train_batch_size": 8, "capacity": 100, **changes})


def _group(sequence: int, version: int = 0, experiences: int = 4, uses: int = 1, used_at: float = 0.0) -> Pooled:
    return Pooled(sequence, 100 + sequence, version, experiences, 10 * experiences, uses, used_at)


def _step(pool: list[Pooled], rule: ReuseRule, fresh: int = 4, step: int = 10, time: float = 0.0) -> Drawn:
    return drawn(Pool(tuple(pool), 0.0), rule, [_group(50, version=9, experiences=fresh)], step, time)


def _reused(found: Drawn) -> list[int]:
    return [group.sequence for group in found.reused]


@pytest.mark.parametrize(
    ("version", "uses", "decay", "priority"),
    [(7, 0, 2.0, 7.0), (7, 1, 2.0, 5.0), (7, 1, 0.5, 6.5), (3, 3, 2.0, -3.0), (0, 4, 0.5, -2.0), (12, 5, 2.0, 2.0)],
)
def test_priorities_are_trinitys(version: int, uses: int, decay: float, priority: float) -> None:
    for name in ("linear_decay", "decay_limit_randomization"):
        rule = _rule(**priority_args(name, {"decay": decay}), priority_fn=name)
        assert rule.priority(version, uses, ordinal=3) == priority


@pytest.mark.parametrize(("limit", "uses"), [(3, 3), (1, 1), (0, math.inf)])
def test_an_experience_has_as_many_uses_as_trinity_gives_it(limit: int, uses: float) -> None:
    rule = _rule(**priority_args("decay_limit_randomization", {"use_count_limit": limit}))
    assert next((n for n in range(1, 50) if rule.is_used_up(n)), math.inf) == uses


def test_linear_decay_has_no_limit_of_its_own() -> None:
    assert not _rule(**priority_args("linear_decay", {})).is_used_up(1000)


def test_the_noise_is_standard_normal_and_the_same_for_a_task_and_its_uses() -> None:
    drawn_numbers = [standard_normal(ordinal, uses) for ordinal in range(500) for uses in (1, 2)]
    assert fmean(drawn_numbers) == pytest.approx(0.0, abs=0.1)
    assert pstdev(drawn_numbers) == pytest.approx(1.0, abs=0.1)
    assert (standard_normal(0, 1), standard_normal(17, 2)) == (-0.03487543556185201, -0.8844477358909428)
    noisy = _rule(sigma=2.0)
    assert noisy.priority(5, 1, 17) == 3.0 + 2.0 * standard_normal(17, 1)


def test_the_highest_priority_is_taken_and_of_equals_the_oldest() -> None:
    pool = [_group(1, version=5), _group(2, version=7), _group(3, version=8, uses=2), _group(4, version=7)]
    assert _reused(_step(pool, _rule())) == [2]
    assert _reused(_step(pool, _rule(train_batch_size=12))) == [2, 4]
    assert _reused(_step(pool, _rule(train_batch_size=16))) == [2, 3, 4]


def test_groups_are_taken_whole_and_smaller_ones_where_larger_ones_do_not_fit() -> None:
    pool = [_group(1, version=9, experiences=4), _group(2, version=8, experiences=3), _group(3, experiences=1)]
    found = _step(pool, _rule(), fresh=5)
    assert (_reused(found), found.experiences, found.tokens) == ([2], 3, 30)
    assert _reused(_step(pool, _rule(), fresh=4)) == [1]
    assert _reused(_step(pool, _rule(), fresh=8)) == []


def test_nothing_is_used_again_before_its_cooldown_in_stream_time() -> None:
    pool = [_group(1, version=9, used_at=100.0), _group(2, version=1, used_at=60.0)]
    rule = _rule(cooldown_s=30.0)
    assert _reused(_step(pool, rule, time=89.0)) == []
    assert _reused(_step(pool, rule, time=90.0)) == [2]
    found = _step(pool, rule, time=130.0)
    assert [(g.sequence, g.uses, g.used_at) for g in found.pool.groups] == [
        *((1, 2, 130.0), (2, 1, 60.0), (50, 1, 130.0)),
    ]


def test_what_is_used_up_or_stale_leaves_the_pool() -> None:
    """At step 10 a version below 7 is too old, at the next one a version below 8."""
    pool = [_group(1, version=9, uses=2), _group(2, version=6), _group(3, version=7), _group(4, version=8, uses=2)]
    found = _step(pool, _rule(use_count_limit=3, max_staleness=2))
    assert (_reused(found), found.retired, found.evicted) == ([1], 12, 0)
    assert [(g.sequence, g.uses) for g in found.pool.groups] == [(4, 2), (50, 1)]


def test_beyond_the_capacity_the_lowest_priorities_leave_and_of_equals_the_oldest() -> None:
    pool = [_group(1, version=5), _group(2, version=3), _group(3, version=3)]
    found = _step(pool, _rule(capacity=12, train_batch_size=4))
    assert (found.evicted, [g.sequence for g in found.pool.groups]) == (4, [1, 3, 50])
    found = _step(pool, _rule(capacity=3, train_batch_size=4))
    assert (found.evicted, found.pool.groups) == (16, ())


def test_a_pool_survives_its_own_text() -> None:
    pool = _step([_group(1, version=5, used_at=0.1 + 0.2)], _rule(), time=1 / 3).pool
    assert Pool.from_json(pool.as_json()) == pool
    assert (pool.first, pool.experiences) == (1, 8)
    assert Pool().first is None

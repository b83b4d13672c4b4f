"""Batches of a filtered stream are a function of its order: whoever reads it in whatever portions, and dies wherever,
makes the same ones, and every experience has one fate."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.experiences import GroupSampled, TaskAbandoned
from schemas.tasks import TaskIdentity
from services.trainer.intake import Batch, Intake
from services.trainer.ledger import Ledger
from services.trainer.pipeline.operators import reward_filter, zero_variance_filter
from services.trainer.pipeline.pipeline import Pipeline, Stage

RUN, SIZE, GROUP = "tests/pipeline", 8, 4
DYNAMIC = Pipeline((Stage("zero_variance_filter", zero_variance_filter),))
STAGES = (
    Stage("reward_filter", reward_filter, {"threshold": 0.0}),
    Stage("zero_variance_filter", zero_variance_filter),
)


def abandoned(ordinal: int) -> TaskAbandoned:
    task = TaskIdentity(ordinal=ordinal, batch=0, taskset="sums", epoch=0, index=ordinal)
    return TaskAbandoned(run=RUN, task=task, repeat_times=GROUP, explorer="e", attempts=1, error="it would not")


def test_what_is_filtered_does_not_count_and_others_fill_the_batch(group) -> None:
    intake = Intake(Ledger(), SIZE, RUN, pipeline=DYNAMIC)
    for sequence, rewards in enumerate([(1.0,) * 4, (0.0, 1.0, 0.0, 1.0), (0.0,) * 4, (1.0, 0.0, 0.0, 0.0)], start=1):
        assert intake.ready == 0
        intake.offer(sequence, group(sequence, *rewards))
    batch = intake.take()
    assert [each.task.ordinal for each in batch.groups] == [2, 4]
    assert [entry.fate for entry in batch.entries] == [
        *("filtered:zero_variance_filter", "trained", "filtered:zero_variance_filter", "trained"),
    ]
    ledger = Ledger()
    ledger.record(batch.entries)
    assert (ledger.counts.trained, ledger.counts.filtered) == (8, {"zero_variance_filter": 8})
    assert (ledger.sequences.floor, ledger.ordinals.above) == (5, {1, 2, 3, 4})


def test_a_group_that_is_filtered_in_part_is_trained_in_part(group) -> None:
    ledger = Ledger()
    intake = Intake(ledger, SIZE, RUN, pipeline=Pipeline(STAGES))
    for sequence in (1, 2, 3):
        intake.offer(sequence, group(sequence, -1.0, 0.0, 1.0, 2.0))
    batch = intake.take()
    assert [len(each.experiences) for each in batch.groups] == [3, 3, 3]
    assert [(entry.fate, entry.experiences, entry.tokens) for entry in batch.entries] == [("trained", 3, 9)] * 3
    intake.commit(batch, 1)
    assert (ledger.counts.trained, ledger.counts.filtered) == (9, {"reward_filter": 3})


def test_beyond_the_refill_what_is_filtered_counts_so_that_every_step_ends(group) -> None:
    intake = Intake(Ledger(), SIZE, RUN, pipeline=Pipeline(STAGES, refill=1))
    for sequence in range(1, 5):
        assert (intake.ready, intake.gathered) == (0, max(0, 4 * (sequence - 3)))
        intake.offer(sequence, group(sequence, 1.0, 1.0, 1.0, 1.0))
    assert (intake.ready, intake.steps) == (1, 1)
    batch = intake.take()
    assert (batch.groups, batch.owed, batch.made_up, batch.is_short) == ([], 8, 8, False)


def test_without_refill_a_batch_is_smaller_by_what_is_filtered(group) -> None:
    intake = Intake(Ledger(), SIZE, RUN, pipeline=Pipeline(STAGES, refill=0))
    intake.offer(1, group(1, 1.0, 1.0, 1.0, 1.0))
    intake.offer(2, group(2, 0.0, 1.0, 1.0, 1.0))
    assert len(intake.take().experiences) == 4


def test_what_is_left_at_the_end_makes_no_step_where_all_of_it_was_filtered(group) -> None:
    ledger = Ledger()
    intake = Intake(ledger, SIZE, RUN, pipeline=DYNAMIC)
    intake.offer(1, group(1, 1.0, 1.0, 1.0, 1.0))
    rest = intake.take()
    assert (rest.owed, intake.steps) == (0, 0)
    intake.commit(rest, 0)
    assert (ledger.step, ledger.counts.filtered) == (0, {"zero_variance_filter": 4})


def test_an_answer_to_an_abandoned_task_is_filtered_by_its_rule_alone(group) -> None:
    ledger = Ledger()
    intake = Intake(ledger, SIZE, RUN, pipeline=DYNAMIC)
    for sequence, message in enumerate(
        [abandoned(0), group(0, 1.0, 1.0, 1.0, 1.0), group(0, 0.0, 1.0, 1.0, 1.0), abandoned(1)], start=1
    ):
        intake.offer(sequence, message)
    batch = intake.take()
    assert [entry.fate for entry in batch.entries] == [
        *("filtered:abandoned", "filtered:zero_variance_filter", "duplicate", "filtered:abandoned"),
    ]
    ledger.record(batch.entries)
    assert ledger.counts.filtered == {"zero_variance_filter": 4, "abandoned": 4}
    assert (ledger.counts.duplicates, ledger.abandoned) == (4, {1: 4})


def test_the_bound_of_staleness_control_follows_the_step_of_the_open_batch(group) -> None:
    intake = Intake(Ledger(), SIZE, RUN, pipeline=Pipeline(max_staleness=1))
    for sequence in range(1, 9):
        intake.offer(sequence, group(sequence, 0.0, 1.0, 1.0, 1.0, version=0))
    fates = [entry.fate for _ in range(2) for entry in intake.take().entries]
    assert fates == ["trained"] * 4
    assert {entry.fate for entry in intake.take().entries} == {"filtered:stale"}


REWARDS = st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=GROUP, max_size=GROUP)
STREAM = st.lists(
    st.tuples(
        st.sampled_from(["group"] * 5 + ["abandoned", "garbage"]), st.integers(0, 19), REWARDS, st.integers(0, 3)
    ),
    max_size=40,
)
PIPELINES = st.builds(
    Pipeline, st.sampled_from([(), STAGES[:1], STAGES]), st.sampled_from([None, 0, 2]), st.sampled_from([0, 1, 10])
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(stream=STREAM, pipeline=PIPELINES, data=st.data())
def test_portions_and_deaths_change_no_batch_and_every_experience_has_one_fate(group, stream, pipeline, data) -> None:
    messages = [_message(group, *each) for each in stream]
    whole = _made(Ledger(), messages, pipeline, len(messages))
    ledger, died = Ledger(), []
    while len(died) < len(whole):  # a trainer that dies again and again, with another read-ahead each time
        steps, portion = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 7))
        died += _made(ledger, messages, pipeline, steps, portion)
        ledger = Ledger.from_json(ledger.to_json())
    assert died == whole
    first: dict[int, int] = {}
    for message in messages[: ledger.sequences.floor - 1]:
        if isinstance(message, GroupSampled):
            first.setdefault(message.task.ordinal, len(message.experiences))
    filtered = {rule: count for rule, count in ledger.counts.filtered.items() if rule != "abandoned"}
    assert ledger.counts.trained + sum(filtered.values()) == sum(first.values())
    assert sum(ledger.abandoned.values()) == ledger.counts.filtered.get("abandoned", 0)


def _message(group, kind: str, ordinal: int, rewards: list[float], version: int) -> GroupSampled | TaskAbandoned | None:
    if kind == "group":
        return group(ordinal, *rewards, version=version)
    return abandoned(ordinal) if kind == "abandoned" else None


def _made(ledger: Ledger, messages: list, pipeline: Pipeline, steps: int, portion: int | None = None) -> list[object]:
    """What the next batches hold, at most `steps` of them; `portion` messages are offered before batches are taken."""
    intake = Intake(ledger, SIZE, RUN, pipeline=pipeline)
    made: list[object] = []
    rest = list(enumerate(messages, start=1))[ledger.sequences.floor - 1 :]
    while rest or intake.ready:
        for sequence, message in rest[:portion]:
            intake.offer(sequence, message)
        rest = rest[portion:] if portion else []
        while intake.ready and len(made) < steps:
            batch = intake.take()
            intake.commit(batch, ledger.step + 1)
            made.append(_shown(batch))
        if len(made) == steps:
            break
    return made


def _shown(batch: Batch) -> object:
    entries = [
        (e.sequence, e.ordinal, e.fate, e.experiences, e.tokens, tuple(e.filtered.items())) for e in batch.entries
    ]
    return entries, [(g.task.ordinal, [e.position for e in g.experiences]) for g in batch.groups], batch.owed

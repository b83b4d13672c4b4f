"""One example of every message, whose bytes are kept in tests/golden."""

from collections.abc import Callable

import pytest

from schemas.blobs import BlobClaimed
from schemas.experiences import Experience, GroupSampled, TaskAbandoned
from schemas.message import Message
from schemas.reports import EvaluationReported, MetricsReported, Quarantined, Span
from schemas.serving import ConversationsFinished, SlotClaimed
from schemas.state import (
    Counts,
    IncarnationTaken,
    LeaseHeld,
    MemberSeen,
    Refill,
    Reissued,
    ReleaseProgress,
    Resumed,
    RowsChosen,
    RunDeclared,
    Segment,
    StoreProgress,
    TaskExcused,
    TasksetOffered,
    TasksetShare,
    TrainProgress,
)
from schemas.tasks import TaskIdentity, TaskReleased
from schemas.weights import FileDigest, WeightsAnnounced, WeightVersion

TASK = TaskIdentity(ordinal=17, batch=2, taskset="addition", epoch=1, index=5)
WEIGHTS = WeightVersion(incarnation=3, version=12)
COUNTS = Counts(
    trained=768,
    filtered={"no_spread": 8},
    quarantined=1,
    duplicates=2,
    tokens_trained=12_345,
    reused=64,
    tokens_reused=1_029,
)


def _experience(position: int) -> Experience:
    return Experience(
        position=position,
        tokens=[1, 50_000, 2_147_483_647, 7, 8],
        prompt_length=2,
        action_mask=[1, 0, 1],
        logprobs=[-0.5, -1.25, -0.0078125],
        token_versions=[11, 11, 12],
        reward=0.75,
        metrics={"accuracy": 1.0, "format": -0.5},
        prompt_text="12 + 30 = ?",
        response_text="\\boxed{42} ✓",
        is_truncated=position == 1,
        step=position,
        temperature=0.5,
        teacher_logprobs=[-0.25, -2.0, -0.5],
        state="a1f3",
        step_reward=0.125,
    )


def _spoken() -> list[Message]:
    return [
        TaskReleased(
            run="project/name",
            task=TASK,
            repeat_times=8,
            workflow="math_workflow",
            reward_fn="math",
            row={"question": "12 + 30 = ?", "answer": 42, "tags": ["sum", None, True], "level": 0.5},
            format_args={"prompt_key": "question"},
            rollout_args={"temperature": 1.0},
            workflow_args={"use_base": False},
            reward_fn_args={"tolerance": 1e-6},
            floor=WEIGHTS,
            batch_tasks=8,
            released_at=1_700_000_000.25,
            term=4,
            retry=1,
        ),
        GroupSampled(
            run="project/name",
            task=TASK,
            repeat_times=2,
            explorer="explorer-0",
            incarnation=3,
            experiences=(_experience(0), _experience(1)),
            attempt=2,
            started_at=1_700_000_001.0,
            finished_at=1_700_000_002.5,
            tokenizer="0123456789abcdef",
            retry=1,
        ),
        TaskAbandoned(
            run="project/name",
            task=TASK,
            repeat_times=8,
            explorer="explorer-0",
            attempts=5,
            error="ValueError: no answer",
            abandoned_at=1_700_000_003.0,
            retry=1,
        ),
        WeightsAnnounced(
            run="project/name",
            weights=WEIGHTS,
            method="checkpoint",
            uri="weights/3-12",
            files=(FileDigest(name="model.safetensors", size_bytes=269_060_552, sha256="ab" * 32),),
            dtype="bfloat16",
            step_ended_at=1_700_000_004.0,
            announced_at=1_700_000_005.0,
            is_final=True,
            is_adapter=True,
        ),
        EvaluationReported(
            run="project/name",
            evaluator="evaluator-0",
            weights=WEIGHTS,
            taskset="held_out",
            tasks=100,
            metrics={"mean@1": 0.5, "best@4": 0.75},
            duration_s=12.5,
            at=1_700_000_006.0,
        ),
        MetricsReported(
            run="project/name",
            service="trainer",
            source="trainer-0",
            step=12,
            values={"actor/pg_loss": -0.125},
            samples={"reward": (0.0, 1.0, 0.5)},
            spans=(Span(activity="training", start_s=1.0, end_s=2.0),),
            parts=2,
            at=1_700_000_007.0,
        ),
        Quarantined(
            run="project/name",
            reason="not msgpack",
            stream="experiences",
            subject="trinity.project_name.experiences.explorer-0",
            sequence=99,
            payload=b"\x00\xff\xc1",
            origin="explorer-0",
            attempts=1,
            at=1_700_000_008.0,
            message_id="project/name:answer:17:0",
        ),
        BlobClaimed(digest="cd" * 32, size_bytes=5_000_000, chunks=6),
    ]


def _kept() -> list[Message]:
    return [
        RunDeclared(
            run="project/name",
            run_dir="runs/project/name",
            config={"mode": "both", "buffer": {"batch_size": 8}},
            declared_at=1_700_000_009.0,
        ),
        MemberSeen(
            service="explorer",
            member="explorer-0",
            host="node-a",
            pid=4242,
            started_at=1_700_000_010.0,
            seen_at=1_700_000_011.0,
            state="sampling",
            weights=WEIGHTS,
            tasks_in_hand=3,
            versions_needed=(11, 12),
            detail={"tokens_per_s": 512.0},
        ),
        LeaseHeld(holder="synchronizer-0", term=4, renewed_at=1_700_000_012.0),
        ReleaseProgress(
            term=4,
            phase="releasing",
            released=24,
            batches=3,
            total_tasks=80,
            total_batches=10,
            waiting_for="version 3",
            updated_at=1_700_000_013.0,
            segments=(Segment(first_ordinal=8, tasksets=(TasksetShare(name="addition", consumed=8, due=72),)),),
            reissued=(Reissued(ordinal=5, times=1),),
            refills=(Refill(first_ordinal=20, tasks=4),),
        ),
        TrainProgress(
            weights=WEIGHTS,
            step=12,
            total_steps=40,
            answered_floor=96,
            answered=97,
            checkpoint_step=10,
            counts=COUNTS,
            reward=0.625,
            sequence_floor=31,
            staleness=1.5,
            is_finished=False,
            updated_at=1_700_000_014.0,
            answered_above=(98,),
            read_sequence=33,
            waiting_for="room in the experience stream",
            batches_closed=13,
            gathered=24,
            loss=0.375,
        ),
        IncarnationTaken(
            incarnation=3,
            trainer="trainer-0",
            taken_at=1_700_000_015.0,
            lineage=(Resumed(incarnation=2, step=8), Resumed(incarnation=3, step=10)),
        ),
        TasksetOffered(
            run="project/name",
            name="subtraction",
            config={"path": "data/subtraction.jsonl"},
            offered_by="explorer_new",
            offered_at=1_700_000_016.0,
        ),
        TaskExcused(ordinal=17, times=2, failures=1),
        StoreProgress(sequence=99, waiting_for="run.db: database is locked", updated_at=1_700_000_013.0),
        RowsChosen(
            taskset="addition",
            term=4,
            sequence=99,
            first=16,
            rows=[5, 0],
            epochs=[1, 0],
            taken=[1, 0, 0, 0, 0, 2],
            alphas=[1.0, 2.5, 0.125, 4.0, 8.0, 9.0],
            betas=[1.0, 0.5, 7.0, 2.0, 2.0, 3.0],
            capability=0.5,
            weight=0.2,
        ),
        ConversationsFinished(
            run="project/name",
            history="9f0c",
            explorer="explorer-0",
            groups=12,
            updated_at=1_700_000_017.0,
        ),
        SlotClaimed(run="project/name", ordinal=17, history="9f0c", group=3, claimed_at=1_700_000_018.0),
    ]


@pytest.fixture
def examples() -> dict[str, Message]:
    return {message.schema_name: message for message in _spoken() + _kept()}


@pytest.fixture
def group(examples: dict[str, Message]) -> Message:
    return examples["group_sampled"]


@pytest.fixture
def envelope() -> Callable[..., bytes]:
    """The bytes of an envelope with parts of one's own."""
    import msgpack

    def packed(**parts: object) -> bytes:
        return bytes(msgpack.packb(parts, use_bin_type=True))

    return packed

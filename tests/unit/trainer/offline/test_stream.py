"""Rows as a stream: the same row at the same place, whoever reads it and from wherever; none is dropped in silence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.experiences import GroupSampled
from services.config.tree import RunConfig
from services.rollout.config import DataSelectorConfig
from services.rollout.ordering import order
from services.trainer.intake import Batch, Intake
from services.trainer.ledger import Ledger
from services.trainer.offline.errors import DataError
from services.trainer.offline.formatting import formatter_of
from services.trainer.offline.stream import RowStream

Offline = Callable[..., RunConfig]


def rows(number: int, long: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """Row n asks n; the fake tokenizer makes a token of every byte."""
    return [{"prompt": f"{n}?", "response": "x" * 99 if n in long else "y"} for n in range(number)]


PLAIN = {"format": {"prompt_type": "plaintext"}}
SHUFFLED = {**PLAIN, "data_selector": {"selector_type": "shuffle", "seed": 3}}


def stream_of(config: RunConfig) -> RowStream:
    buffer, schema = config.buffer.trainer_input.experience_buffer, config.row_schema
    assert buffer is not None
    assert schema is not None
    return RowStream(config, formatter_of(config, "experience_buffer", buffer, schema))


async def read(stream: RowStream, start: int, most: int = 1000) -> list[tuple[int, GroupSampled, str | None]]:
    found = []
    async for delivery in stream.read(start):
        assert isinstance(delivery.message, GroupSampled)
        found.append((delivery.sequence, delivery.message, stream.rule(delivery)))
        if len(found) == most:
            break
    return found


def text(group: GroupSampled) -> str:
    return bytes(group.experiences[0].tokens.tolist()).decode()


async def test_every_epoch_has_an_order_of_its_own_that_any_reader_finds_again(offline: Offline) -> None:
    config = offline(rows(50), buffer=SHUFFLED, total_epochs=2)
    whole = await read(stream_of(config), 1)
    selector = DataSelectorConfig(selector_type="shuffle", seed=3)
    expected = [int(row) for epoch in (0, 1) for row in order(50, epoch, selector)]
    assert [group.task.index for _, group, _ in whole] == expected
    assert [sequence for sequence, _, _ in whole] == list(range(1, 101))
    assert text(whole[0][1]) == f"user: {expected[0]}?\nassistant: y\n"
    later = await read(stream_of(config), 60)
    assert [(sequence, group) for sequence, group, _ in later] == [(s, g) for s, g, _ in whole[59:]]


async def test_a_stream_ends_with_its_epochs_and_knows_its_steps(offline: Offline) -> None:
    stream = stream_of(offline(rows(10), buffer=PLAIN, total_epochs=3))
    assert stream.steps == 8
    assert not await stream.is_over(0, 0)
    assert len(await read(stream, 1)) == 30
    assert await stream.is_over(0, 30)


async def test_with_steps_the_rows_come_again_as_long_as_they_are_needed(offline: Offline) -> None:
    stream = stream_of(offline(rows(3), buffer=PLAIN, total_steps=100))
    assert stream.steps is None
    assert [group.task.epoch for _, group, _ in await read(stream, 1, most=8)] == [0, 0, 0, 1, 1, 1, 2, 2]


async def test_a_row_that_is_too_long_is_left_out_by_a_rule_that_the_ledger_counts(offline: Offline) -> None:
    config = offline(rows(6, long=(1, 4)), buffer=PLAIN)
    ledger = Ledger()
    intake = Intake(ledger, config.usual_batch_size, config.run_name)
    for sequence, group, rule in await read(stream_of(config), 1):
        intake.offer(sequence, group, rule)
    assert intake.ready == 1
    batch = intake.take()
    assert [(entry.sequence, entry.fate) for entry in batch.entries] == [
        (1, "trained"),
        (2, "filtered:too_long"),
        (3, "trained"),
        (4, "trained"),
        (5, "filtered:too_long"),
        (6, "trained"),
    ]
    intake.commit(batch, 1)
    assert (ledger.counts.trained, ledger.counts.filtered) == (4, {"too_long": 2})
    assert (ledger.sequences.floor, ledger.ordinals.floor) == (7, 6)


async def test_a_trainer_that_goes_on_from_its_ledger_makes_the_batches_that_it_would_have_made(
    offline: Offline,
) -> None:
    config = offline(rows(20, long=(2, 3, 11)), buffer=SHUFFLED, total_epochs=2)
    whole = await _batches(config, Ledger(), 100)
    ledger = Ledger()
    done = await _batches(config, ledger, 3)
    assert done + await _batches(config, Ledger.from_json(ledger.to_json()), 100) == whole
    assert len(whole) == 9


async def _batches(config: RunConfig, ledger: Ledger, most: int) -> list[list[tuple[int, int, str]]]:
    intake, stream, made = Intake(ledger, config.usual_batch_size, config.run_name), stream_of(config), []
    for sequence, group, rule in await read(stream, ledger.sequences.floor):
        intake.offer(sequence, group, rule)
    while len(made) < most and (intake.ready or intake.gathered):
        batch: Batch = intake.take()
        intake.commit(batch, ledger.step + 1)
        made.append([(entry.sequence, entry.ordinal or 0, entry.fate) for entry in batch.entries])
    return made


async def test_a_pair_is_one_group_with_the_chosen_answer_first(offline: Offline) -> None:
    pairs = [{"prompt": "2+2=", "chosen": "4", "rejected": "5"}]
    config = offline(pairs, "dpo", buffer=PLAIN)
    ((_, group, rule),) = await read(stream_of(config), 1)
    assert rule is None
    assert (group.repeat_times, [experience.position for experience in group.experiences]) == (2, [0, 1])
    answers = [bytes(each.tokens[each.prompt_length :].tolist()).decode() for each in group.experiences]
    assert answers == ["4\n", "5\n"]
    assert group.experiences[0].logprobs.tolist() == [0.0, 0.0]
    assert stream_of(config).steps == 1


async def test_of_a_pair_one_long_side_leaves_out_both(offline: Offline) -> None:
    pairs = [
        {"prompt": "2+2=", "chosen": "4", "rejected": "x" * 99},
        {"prompt": "1+1=", "chosen": "2", "rejected": "3"},
    ]
    config = offline(pairs, "dpo", buffer=PLAIN)
    ledger = Ledger()
    intake = Intake(ledger, 2, config.run_name)
    for sequence, group, rule in await read(stream_of(config), 1):
        intake.offer(sequence, group, rule)
    intake.commit(intake.take(), 1)
    assert (ledger.counts.trained, ledger.counts.filtered) == (2, {"too_long": 2})


async def test_a_long_text_is_cut_and_says_so(offline: Offline) -> None:
    texts = [{"prompt": "a" * 70}, {"prompt": "short"}]
    ((_, cut, rule), (_, short, _)) = await read(stream_of(offline(texts, "cpt", buffer=PLAIN)), 1)
    experience = cut.experiences[0]
    assert (len(experience.tokens), experience.prompt_length, rule) == (64, 1, None)
    assert (experience.is_truncated, experience.metrics) == (True, {"truncated_tokens": 6.0})
    assert (short.experiences[0].is_truncated, short.experiences[0].action_mask.tolist()) == (False, [1, 1, 1, 1])


async def test_a_text_with_nothing_to_learn_is_left_out_by_its_own_rule(offline: Offline) -> None:
    found = await read(stream_of(offline([{"prompt": ""}, {"prompt": "x"}, {"prompt": "xy"}], "cpt", buffer=PLAIN)), 1)
    assert [rule for _, _, rule in found] == ["empty", "empty", None]


async def test_data_of_which_no_row_is_of_use_ends_an_endless_stream(offline: Offline) -> None:
    config = offline(rows(3, long=(0, 1, 2)), buffer=PLAIN, total_steps=5)
    with pytest.raises(DataError, match="none of its 3 rows can be trained on; the last one is too_long"):
        await read(stream_of(config), 1)


async def test_a_malformed_row_names_the_file_the_row_and_the_key(offline: Offline) -> None:
    config = offline([{"prompt": "1?", "response": "1"}, {"prompt": "2?", "response": None}], buffer=PLAIN)
    with pytest.raises(DataError) as caught:
        await read(stream_of(config), 1)
    path = config.buffer.trainer_input.experience_buffer
    assert path is not None
    assert str(caught.value) == f"{path.path}, row 1: 'response' is null"


def test_data_that_is_not_there_or_empty_is_told(offline: Offline, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.jsonl: is not there"):
        stream_of(offline([], buffer={"path": str(tmp_path / "gone.jsonl")}))
    (tmp_path / "rows.csv").write_text("prompt,response\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"rows\.csv: cannot be read: .* no data"):
        stream_of(offline([], buffer={"path": str(tmp_path / "rows.csv")}))


async def test_the_models_tokenizer_and_template_lay_out_the_rows(offline: Offline, model_dir: Path) -> None:
    config = offline([{"message": [{"role": "user", "content": "2+2="}, {"role": "assistant", "content": "4"}]}])
    config = config.model_copy(
        update={
            "model": config.model.model_copy(update={"model_path": str(model_dir)}),
            "trainer": config.trainer.model_copy(update={"trainer_type": "verl"}),
        }
    )
    ((_, group, _),) = await read(stream_of(config), 1)
    assert len(group.tokenizer) == 16
    assert group.experiences[0].action_mask.tolist() == [1, 1, 1]  # 4, the end of the turn, the end of the line

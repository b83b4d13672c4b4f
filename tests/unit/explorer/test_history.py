"""The history on disk: what was said, judged and committed, and which task each group answers."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from services.explorer.serving.grouping import experiences_of
from services.explorer.serving.history import History, HistoryUnusable
from services.explorer.serving.tables import metadata
from services.inference.engine import Completion
from services.inference.openai.calls import Call
from services.store.place import place_of
from services.store.sql import engine_of

Open = Callable[..., History]


def _call(name: str, prompt: str = "q ", response: str = "answer", version: int = 3, choice: int = 0) -> Call:
    ids = np.frombuffer(response.encode(), np.uint8).astype(np.int32)
    logprobs = -np.arange(1, len(ids) + 1, dtype=np.float32) / 7
    completion = Completion(ids, logprobs, np.full(len(ids), version, np.int32), response, is_truncated=True)
    return Call(name, choice, tuple(prompt.encode()), prompt, completion, temperature=0.75, incarnation=2)


@pytest.fixture(params=["sqlite", "postgresql"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Open the database, as often as there are processes that share it."""
    found: list[History] = []
    is_file = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/history.db" if is_file else request.getfixturevalue("postgresql")

    def open_again(run: str = "p/n") -> History:
        found.append(History(url, run))
        return found[-1]

    yield open_again
    for history in found:
        history.close()
    if not is_file:
        engine = engine_of(place_of(url))
        metadata.drop_all(engine)
        engine.dispose()


def test_a_call_comes_back_as_it_was_sampled_after_the_process_has_died(opened: Open) -> None:
    opened().record([_call("m1"), _call("m1", choice=1)])
    again = opened()
    again.judge(["m1"], 0.5, "task", "a")
    (group,) = again.commit(1).groups
    name, messages = again.messages_of(group)
    assert name == "task"
    assert [(message.run_id, message.reward, message.call.choice) for message in messages] == [
        ("a", 0.5, 0),
        ("a", 0.5, 1),
    ]
    call, original = messages[0].call, _call("m1")
    assert np.array_equal(call.completion.logprobs, original.completion.logprobs)
    assert call.ids == original.ids
    assert (call.temperature, call.incarnation, call.completion.is_truncated) == (0.75, 2, True)
    assert call.completion.token_versions.tolist() == [3] * 6


def test_feedback_says_what_it_knows_and_counts_until_the_commit(opened: Open) -> None:
    history = opened()
    history.record([_call("m1"), _call("m2")])
    assert history.judge(["m1", "nobody"], 0.0, "t", "0").unknown == ("nobody",)
    assert history.judge(["m1"], 1.0, "t", "0").updated == ("m1",), "a later word takes its place"
    (group,) = history.commit(1).groups
    late = history.judge(["m1", "m2"], -1.0, "t", "1")
    assert (late.updated, late.committed) == (("m2",), ("m1",))
    assert history.messages_of(group)[1][0].reward == 1.0


def test_only_tasks_with_all_their_runs_are_committed_and_those_that_are_named(opened: Open) -> None:
    history = opened()
    history.record([_call(f"m{n}") for n in range(5)])
    for name, task, run in (("m0", "whole", "0"), ("m1", "whole", "1"), ("m2", "half", "0"), ("m3", "other", "0")):
        history.judge([name], 1.0, task, run)
    history.judge(["m4"], 1.0, None, "0")
    first = history.commit(2)
    assert (len(first.groups), first.messages) == (2, 3), "one with both runs, and one that no other can join"
    assert first.waiting == {"half": 1, "other": 1}
    second = history.commit(2, ["half"])
    assert [history.messages_of(group)[0] for group in second.groups] == ["half"]
    assert history.commit(2).groups == ()
    assert history.finished() == 3


def test_runs_of_two_names_do_not_see_each_other_in_one_database(opened: Open) -> None:
    one, other = opened("p/one"), opened("p/other")
    one.record([_call("m")])
    assert other.judge(["m"], 1.0, "t", "0").unknown == ("m",)
    assert one.id != other.id
    assert opened("p/one").id == one.id


def test_a_task_has_one_group_and_a_group_one_task_however_many_ask_at_once(opened: Open) -> None:
    writer = opened()
    writer.record([_call(f"m{n}") for n in range(12)])
    for n in range(12):
        writer.judge([f"m{n}"], 1.0, f"t{n}", "0")
    groups = writer.commit(1).groups
    bound: dict[int, set[int | None]] = {ordinal: set() for ordinal in range(16)}

    def bind(history: History) -> None:
        for ordinal in bound:
            bound[ordinal].add(history.bind(ordinal))

    threads = [threading.Thread(target=bind, args=(opened(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(found) == 1 for found in bound.values()), bound
    taken = [group for found in bound.values() for group in found if group is not None]
    assert sorted(taken) == sorted(groups)


def test_a_group_whose_task_is_anothers_wants_another_one_unless_it_was_published(opened: Open) -> None:
    history = opened()
    history.record([_call("m")])
    history.judge(["m"], 1.0, None, "0")
    history.commit(1)
    group = history.bind(7)
    assert group is not None
    assert (history.unbound(), history.unpublished()) == (0, [(group, 7)])
    history.unbind(group)
    assert (history.unbound(), history.bind(8)) == (1, group)
    history.published(group)
    history.unbind(group)
    assert (history.unbound(), history.bind(8), history.unpublished()) == (0, group, [])


def test_the_tables_hold_plain_columns(tmp_path: Path) -> None:
    history = History(f"sqlite:///{tmp_path}/history.db", "p/n")
    history.record([_call("m1", response="ab")])
    history.close()
    with sqlite3.connect(tmp_path / "history.db") as plain:
        row = plain.execute("SELECT msg_id, response_text, response_ids, temperature FROM served_messages").fetchone()
    plain.close()
    assert row == ("m1", "ab", b"a\0\0\0b\0\0\0", 0.75)


@pytest.mark.parametrize(
    ("url", "words"),
    [("mysql://h/d", "mysql"), ("nonsense", "write sqlite:///FILE.db"), ("sqlite:////proc/none/x.db", "/proc/none")],
)
def test_a_database_that_cannot_be_used_is_told_with_its_key(url: str, words: str) -> None:
    with pytest.raises((HistoryUnusable, OSError), match=words):
        History(url, "p/n")


def test_runs_are_positions_and_a_conversation_is_one_experience(opened: Open) -> None:
    history = opened()
    history.record([_call("a1", "q ", "x "), _call("b1", "q ", "y "), _call("a2", "q x r ", "z ")])
    history.judge(["a1", "a2"], 1.0, "t", "first")
    history.judge(["b1"], 0.0, "t", "second")
    (group,) = history.commit(2).groups
    experiences = experiences_of(history.messages_of(group)[1])
    assert [(each.position, each.step, each.reward, each.prompt_text) for each in experiences] == [
        (0, 0, 1.0, "q "),
        (1, 0, 0.0, "q "),
    ]
    assert experiences[0].action_mask.tolist() == [1, 1, 0, 0, 1, 1]

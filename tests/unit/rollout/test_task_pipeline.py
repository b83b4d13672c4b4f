"""What the task pipeline leaves of rows, in which order, and that everybody who opens a taskset has the same."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.rollout.config import RowPipelineConfig, TaskPipelineConfig, TasksetConfig
from services.rollout.errors import TasksetError
from services.rollout.offering import differences, located
from services.rollout.task_pipeline import OPERATORS, OperatorFailed, piped, register_task_operator, write_rows
from services.rollout.tasksets import open_taskset

ROWS = [
    {"prompt": "1+1=", "level": 1, "kind": "sum", "tags": []},
    {"prompt": "What is  12 times 12?", "level": 3, "kind": "product", "tags": ["long"]},
    {"prompt": "what is 12 times 12?", "level": 2, "kind": "product", "tags": ["long"]},
    {"prompt": "", "level": 9, "kind": "sum", "tags": ["empty"]},
]


def prompts(*operators: dict[str, Any], **pipeline: Any) -> list[str]:
    found = piped(ROWS, RowPipelineConfig.model_validate({"operators": list(operators), **pipeline}))
    return [row["prompt"] for row in found]


@pytest.mark.parametrize(
    ("operator", "levels"),
    [
        ({"name": "length_filter", "args": {"fields": ["prompt"], "least": 1, "most": 10}}, [1]),
        ({"name": "length_filter", "args": {"fields": ["prompt", "kind"], "least": 8}}, [3, 2]),
        ({"name": "field_filter", "args": {"field": "level", "least": 2, "most": 3}}, [3, 2]),
        ({"name": "field_filter", "args": {"field": "kind", "one_of": ["sum"], "keep": False}}, [3, 2]),
        ({"name": "field_filter", "args": {"field": "prompt", "pattern": r"\d\+"}}, [1]),
        ({"name": "deduplicate", "args": {"fields": ["prompt"]}}, [1, 3, 9]),
        ({"name": "not_empty", "args": {"fields": ["prompt", "tags"]}}, [3, 2]),
    ],
)
def test_an_operator_keeps_what_it_says(operator: dict[str, Any], levels: list[int]) -> None:
    found = piped(ROWS, RowPipelineConfig.model_validate({"operators": [operator]}))
    assert [row["level"] for row in found] == levels


def test_operators_work_one_after_the_other_on_the_target_fields() -> None:
    left = prompts({"name": "not_empty"}, {"name": "deduplicate"}, target_fields=["prompt"])
    assert left == ["1+1=", "What is  12 times 12?"]


def test_rows_come_by_their_priority_and_only_the_first_stay() -> None:
    priority = {"level": 1.0, "length": 1.0}
    rows = [{"level": level, "length": length} for level, length in ((1, 100), (5, 0), (3, 100), (1, 0))]
    ranked = piped(rows, RowPipelineConfig(priority_weights=priority))
    assert [(row["level"], row["length"]) for row in ranked] == [(3, 100), (1, 100), (5, 0), (1, 0)]
    assert len(piped(rows, RowPipelineConfig(priority_weights=priority, top_k=2))) == 2
    assert [row["level"] for row in piped(rows, RowPipelineConfig(top_k=3))] == [1, 5, 3]


def test_an_operator_of_ones_own_is_registered_or_named_by_its_path(monkeypatch) -> None:
    monkeypatch.setattr("services.rollout.task_pipeline.OPERATORS", dict(OPERATORS))

    @register_task_operator("reversed")
    def reverse(rows: list[dict[str, Any]], times: int = 1) -> list[dict[str, Any]]:
        return rows[::-1] if times % 2 else rows

    monkeypatch.setitem(OPERATORS, "reversed", reverse)
    assert prompts({"name": "reversed"})[0] == ""
    path = "services.rollout.task_pipeline.not_empty"
    assert prompts({"name": path}, target_fields=["prompt"]) == [row["prompt"] for row in ROWS[:3]]


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        ({"name": "lenght_filter"}, "unknown operator of tasks 'lenght_filter': did you mean 'length_filter'"),
        ({"name": "nowhere.at_all"}, "operator nowhere.at_all cannot be imported"),
        ({"name": "deduplicate", "args": {"fields": ["question"]}}, "a row has no 'question': it has prompt, level"),
        ({"name": "field_filter", "args": {"field": "kind", "least": 2}}, "operator field_filter: TypeError"),
    ],
)
def test_an_operator_that_fails_is_named(operator: dict[str, Any], words: str) -> None:
    with pytest.raises(OperatorFailed, match=words):
        prompts(operator)


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., str]:
    def make(rows: list[dict[str, Any]], name: str = "rows.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    return make


def test_a_taskset_has_the_rows_that_its_pipeline_leaves(file, tmp_path) -> None:
    pipeline = {"operators": [{"name": "not_empty"}], "target_fields": ["prompt"], "priority_weights": {"level": 1.0}}
    settings = TasksetConfig.model_validate({"name": "sums", "path": file(ROWS), "task_pipeline": pipeline})
    taskset = open_taskset(settings)
    assert [taskset.row(index)["level"] for index in range(len(taskset))] == [3, 2, 1]
    write_rows(tmp_path / "out" / "left.jsonl", (taskset.row(index) for index in range(len(taskset))))
    again = open_taskset(TasksetConfig(name="sums", path=str(tmp_path / "out" / "left.jsonl")))
    assert [again.row(index) for index in range(3)] == [taskset.row(index) for index in range(3)]
    other = settings.model_copy(update={"task_pipeline": None})
    assert differences(settings, other).startswith("task_pipeline: ")
    assert located(settings).task_pipeline == settings.task_pipeline


def test_a_pipeline_that_leaves_nothing_is_an_error(file) -> None:
    pipeline = {"operators": [{"name": "length_filter", "args": {"fields": ["prompt"], "least": 99}}]}
    with pytest.raises(TasksetError, match="'sums': the task pipeline leaves none of its 4 rows"):
        open_taskset(TasksetConfig.model_validate({"name": "sums", "path": file(ROWS), "task_pipeline": pipeline}))


def test_the_taskset_at_the_output_has_the_rows_of_all_inputs(file) -> None:
    first, second = file(ROWS[:2], "first.jsonl"), file(ROWS[2:], "second.jsonl")
    shared = TaskPipelineConfig.model_validate(
        {"inputs": [first, second], "output": {"path": "left.jsonl"}, "top_k": 3, "num_process": 8}
    )
    output, named, other = (TasksetConfig(name="t", path=path) for path in ("left.jsonl", first, "else.jsonl"))
    assert shared.of(other) is None
    assert shared.of(named) == RowPipelineConfig(top_k=3)
    taskset = open_taskset(output.model_copy(update={"task_pipeline": shared.of(output)}))
    assert [taskset.row(index)["level"] for index in range(len(taskset))] == [1, 3, 2]


@pytest.fixture
def database(tmp_path: Path) -> str:
    with sqlite3.connect(tmp_path / "tasks.db") as connection:
        connection.execute("create table sums (id integer primary key, prompt text, answer int)")
        connection.executemany("insert into sums values (?, ?, ?)", [(3, "c", 1), (1, "a", 3), (2, "b", 2)])
        connection.execute("create table raw (id integer primary key, raw_task json)")
        connection.executemany("insert into raw values (?, ?)", [(1, '{"prompt": "x"}'), (2, '{"prompt": "y"}')])
        connection.execute("create table heap (prompt text)")
    connection.close()
    return f"sqlite:///{tmp_path}/tasks.db"


def test_tasks_come_from_a_table_in_the_order_of_its_key(database) -> None:
    taskset = open_taskset(TasksetConfig(name="sums", storage_type="sql", path=database))
    assert taskset.columns == ("id", "prompt", "answer")
    assert [taskset.row(index)["prompt"] for index in range(3)] == ["a", "b", "c"]
    raw = open_taskset(TasksetConfig(name="any", storage_type="sql", path=database, subset_name="raw"))
    assert [raw.row(index) for index in range(2)] == [{"prompt": "x"}, {"prompt": "y"}]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("heap", "table 'heap' has no primary key, so the order of its rows is not certain"),
        ("smus", "the database has no table 'smus': did you mean 'sums'"),
    ],
)
def test_a_table_that_cannot_be_read_in_order_is_refused(database, table, words) -> None:
    with pytest.raises(TasksetError, match=words):
        open_taskset(TasksetConfig(name="t", storage_type="sql", path=database, subset_name=table))


def test_a_database_that_is_not_there_is_told(tmp_path) -> None:
    for path, words in ((f"sqlite:///{tmp_path}/no.db", "no.db is not there"), ("rows.jsonl", "no URL of a database")):
        with pytest.raises(TasksetError, match=words):
            open_taskset(TasksetConfig(name="t", storage_type="sql", path=path))

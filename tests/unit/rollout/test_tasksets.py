"""Tasksets are read from files, directories and generators; what is wrong with them is said at once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from services.rollout.config import TasksetConfig
from services.rollout.errors import TasksetError
from services.rollout.tasksets import Taskset, open_taskset

ROWS = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "2+2=", "answer": "4"}, {"prompt": "3+3=", "answer": "6"}]
LAYOUT = {"prompt_key": "prompt", "response_key": "answer"}


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Taskset]:
    def open_path(path: Path | str | None, **changes: Any) -> Taskset:
        values = {"name": "sums", "path": None if path is None else str(path), "format": LAYOUT}
        return open_taskset(TasksetConfig.model_validate(values | changes), tmp_path / "cache")

    return open_path


def rows_of(taskset: Taskset) -> list[dict[str, Any]]:
    return [taskset.row(index) for index in range(len(taskset))]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv", "rows.parquet"])
def test_the_same_rows_come_out_of_every_kind_of_file(
    name: str, tmp_path: Path, opened: Callable[..., Taskset]
) -> None:
    path = tmp_path / name
    match path.suffix:
        case ".json":
            path.write_text(json.dumps(ROWS), encoding="utf-8")
        case ".csv":
            path.write_text("prompt,answer\n" + "".join(f"{r['prompt']},{r['answer']}\n" for r in ROWS))
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(ROWS), path)
        case _:
            write_jsonl(path, ROWS)
    rows = rows_of(opened(path))
    assert [row["prompt"] for row in rows] == ["1+1=", "2+2=", "3+3="]
    assert [str(row["answer"]) for row in rows] == ["2", "4", "6"]


def test_a_single_file_is_whichever_split_is_asked_for(tmp_path: Path, opened: Callable[..., Taskset]) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    assert rows_of(opened(path, split="test")) == ROWS
    assert rows_of(opened(path, split="train[:2]")) == ROWS[:2]


def test_a_directory_has_the_splits_of_its_files(tmp_path: Path, opened: Callable[..., Taskset]) -> None:
    write_jsonl(tmp_path / "set" / "train.jsonl", ROWS[:2])
    write_jsonl(tmp_path / "set" / "test.jsonl", ROWS[2:])
    assert rows_of(opened(tmp_path / "set")) == ROWS[:2]
    assert rows_of(opened(tmp_path / "set", split="test")) == ROWS[2:]
    with pytest.raises(TasksetError, match=r"taskset 'sums': no split 'tset': did you mean 'test'.*has train, test"):
        opened(tmp_path / "set", split="tset")
    with pytest.raises(TasksetError, match="subset_name=main is none of its parts: leave it out"):
        opened(tmp_path / "set", subset_name="main")


def test_local_files_leave_nothing_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "users")
    taskset = open_taskset(TasksetConfig.model_validate({"path": str(path), "format": LAYOUT}))
    assert (taskset.name, rows_of(taskset)) == ("rows", ROWS)
    assert not (tmp_path / "users").exists()


def test_nested_and_large_values_stay_plain(tmp_path: Path, opened: Callable[..., Taskset]) -> None:
    row = {"prompt": [{"role": "user", "content": "a"}], "meta": {"n": 2**40, "x": 0.5, "none": None}}
    assert rows_of(opened(write_jsonl(tmp_path / "rows.jsonl", [row]))) == [row]


def test_a_file_that_is_not_there(tmp_path: Path, opened: Callable[..., Taskset]) -> None:
    with pytest.raises(TasksetError, match=r"taskset 'sums': .*absent.jsonl is not there"):
        opened(tmp_path / "absent.jsonl")
    with pytest.raises(TasksetError, match="no path: set it"):
        opened(None)


def test_a_file_of_no_known_kind(tmp_path: Path, opened: Callable[..., Taskset]) -> None:
    (tmp_path / "rows.txt").write_text("a")
    with pytest.raises(TasksetError, match=r"rows.txt is none of .jsonl, .json, .csv, .parquet"):
        opened(tmp_path / "rows.txt")


@pytest.mark.parametrize("text", ["{not json\n", '["a"]\n{"prompt": 1}\n'])
def test_a_file_that_is_malformed(text: str, tmp_path: Path, opened: Callable[..., Taskset]) -> None:
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(TasksetError, match=r"taskset 'sums': .*rows.jsonl cannot be read: \w+"):
        opened(tmp_path / "rows.jsonl")


def test_empty_places(tmp_path: Path, opened: Callable[..., Taskset]) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    (tmp_path / "set").mkdir()
    with pytest.raises(TasksetError, match=r"rows.jsonl has no rows"):
        opened(tmp_path / "rows.jsonl")
    with pytest.raises(TasksetError, match="set cannot be read: EmptyDatasetError"):
        opened(tmp_path / "set")


def test_a_wrong_prompt_key_names_the_columns(tmp_path: Path, opened: Callable[..., Taskset]) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    said = r"format.prompt_key='promt' is no column \(prompt, answer\): did you mean 'prompt'\?"
    with pytest.raises(TasksetError, match=said):
        opened(path, format={"prompt_key": "promt"})


def test_reasoning_gym_makes_the_same_rows_for_the_same_seed(opened: Callable[..., Taskset]) -> None:
    gym = {
        "storage_type": "reasoning_gym",
        "format": {"prompt_key": "question", "response_key": "answer"},
        "generator_args": {"size": 4, "seed": 7, "min_terms": 2, "max_terms": 2},
    }
    first, again = opened("chain_sum", **gym), opened("chain_sum", **gym)
    assert len(first) == 4
    assert rows_of(first) == rows_of(again)
    left, operation, right, _ = (
        first.row(0)["question"]
        .removeprefix("State the final answer to the following ")
        .split(":")[-1]
        .split(maxsplit=3)
    )
    total = int(left) + int(right) if operation == "+" else int(left) - int(right)
    assert first.row(0)["answer"] == str(total)
    assert first.row(0)["metadata"]["source_dataset"] == "chain_sum"


def test_a_generator_that_does_not_exist_names_the_nearest(opened: Callable[..., Taskset]) -> None:
    with pytest.raises(TasksetError, match="no generator 'chain_sums': did you mean 'chain_sum'"):
        opened("chain_sums", storage_type="reasoning_gym")


def test_arguments_that_a_generator_refuses(opened: Callable[..., Taskset]) -> None:
    with pytest.raises(TasksetError, match=r"generator_args of chain_sum: .*bogus"):
        opened("chain_sum", storage_type="reasoning_gym", generator_args={"bogus": 1})


def test_a_row_that_is_not_there(tmp_path: Path, opened: Callable[..., Taskset]) -> None:
    taskset = opened(write_jsonl(tmp_path / "rows.jsonl", ROWS))
    for index in (-1, 3):
        with pytest.raises(IndexError, match=f"no row {index}: it has 3"):
            taskset.row(index)

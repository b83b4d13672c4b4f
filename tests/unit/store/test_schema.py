"""The tables say all that a row of the stream says, and the guide's way of reading them works as it stands."""

import re
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from services.account.table import row_columns
from services.store.build import store_at
from services.store.place import place_of
from services.store.sql_schema import AbandonedTaskModel, ExperienceModel, NumberList, list_text

GUIDE = Path(__file__).parents[3] / "docs" / "storage.md"
RENAMED = {"index": "task_index"}


def test_every_column_of_the_stream_is_a_column_of_a_table() -> None:
    tables = {*ExperienceModel.__table__.columns.keys(), *AbandonedTaskModel.__table__.columns.keys(), "kind"}
    assert {RENAMED.get(name, name) for name in row_columns()} <= tables


def test_the_guide_names_every_column() -> None:
    told = set(re.findall(r"`(\w+)`", GUIDE.read_text(encoding="utf-8")))
    assert set(ExperienceModel.__table__.columns.keys()) <= told


def test_the_script_of_the_guide_prints_what_is_stored(tmp_path, monkeypatch, capsys, group, rows) -> None:
    (script,) = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    store = store_at(place_of("sqlite:///gsm8k.db"))
    store.open("tests/stored")
    stored = group(0, size=3)
    store.write(rows([(1, stored)]), 1)
    names: dict[str, object] = {}
    exec(script, names)
    names["sess"].close()  # type: ignore[attr-defined]
    names["engine"].dispose()  # type: ignore[attr-defined]
    store.close()
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        f"exp.prompt_text={e.prompt_text!r} exp.response_text={e.response_text!r}" for e in stored.experiences[:4]
    ]
    assert names["exp_list"] == list(stored.experiences[:4])


def test_the_queries_of_the_guide_are_answered(tmp_path, group, rows) -> None:
    (script,) = re.findall(r"^```sql\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    store = store_at(place_of(f"sqlite:///{tmp_path}/x.db"))
    store.open("tests/stored")
    stored = [group(0, size=1), group(1, size=1)]
    store.write(rows(list(enumerate(stored, start=1))), 2)
    store.close()
    by_task, by_logprob = script.strip().replace("> 10", ">= 0").split(";\n")
    with sqlite3.connect(tmp_path / "x.db") as connection:
        rewards = dict(connection.execute(by_task).fetchall())
        means = sorted(connection.execute(by_logprob.strip().strip(";")).fetchall())
    connection.close()
    assert rewards == {
        each.task.task_id: pytest.approx(np.mean([e.reward for e in each.experiences])) for each in stored
    }
    every = [experience for each in stored for experience in each.experiences]
    expected = [float(np.mean(experience.logprobs, dtype=np.float64)) for experience in every]
    assert [mean for _, mean in means] == pytest.approx(expected, rel=1e-6)


def test_a_list_of_log_probs_gives_the_same_float32_again() -> None:
    chance = np.random.default_rng(0)
    bits = chance.integers(0, 2**32, 20_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    numbers = bits[np.isfinite(bits)]
    kind = NumberList("float32")
    again = kind.process_result_value(list_text(numbers), None)  # type: ignore[arg-type]
    assert again is not None
    assert again.view(np.uint32).tolist() == numbers.view(np.uint32).tolist()

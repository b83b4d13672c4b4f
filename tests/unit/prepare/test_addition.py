"""The quickstart's data."""

from pathlib import Path

from services.prepare.addition import additions, judged, texts, worked, write_rows


def terms(row: dict[str, str]) -> tuple[int, ...]:
    return tuple(int(term) for term in row["prompt"].split("\n")[1].removesuffix("=").split("+"))


def test_every_row_is_a_right_sum_of_two_digit_numbers_after_a_solved_one() -> None:
    train, held_out = additions(512, 64)
    assert (len(train), len(held_out)) == (512, 64)
    for row in train + held_out:
        assert row["prompt"].startswith("21+34=55\n")
        assert all(10 <= term <= 99 for term in terms(row))
        assert row["answer"] == str(sum(terms(row)))


def test_no_sum_is_asked_twice_nor_given_away() -> None:
    train, held_out = additions(512, 64)
    asked = [tuple(sorted(terms(row))) for row in train + held_out]
    assert len(set(asked)) == 576
    assert (21, 34) not in asked


def test_the_same_seed_makes_the_same_rows() -> None:
    assert additions(8, 4, seed=3) == additions(8, 4, seed=3)
    assert additions(8, 4, seed=3) != additions(8, 4, seed=4)


def test_rows_are_written_once(tmp_path: Path) -> None:
    rows = [{"prompt": "a\nb", "answer": "1"}]
    path = tmp_path / "deep" / "rows.jsonl"
    assert write_rows(path, rows)
    assert path.read_text() == '{"prompt": "a\\nb", "answer": "1"}\n'
    assert not write_rows(path, rows)
    assert write_rows(path, rows * 2)
    assert [file.name for file in path.parent.iterdir()] == ["rows.jsonl"]


def _sum_of(prompt: str) -> int:
    return sum(map(int, prompt.rsplit("\n", 1)[-1].rstrip("=").split("+")))


def test_worked_additions_are_right_and_rejected_ones_are_near_and_wrong() -> None:
    rows, _ = additions(32, 4)
    assert [int(row["response"]) for row in worked(rows)] == [_sum_of(row["prompt"]) for row in rows]
    for row in judged(rows):
        assert int(row["chosen"]) == _sum_of(row["prompt"])
        assert abs(int(row["rejected"]) - int(row["chosen"])) in (1, 10)
    assert judged(rows, seed=1) != judged(rows, seed=2)


def test_texts_hold_every_addition_once() -> None:
    rows, _ = additions(10, 4)
    lines = "".join(row["text"] for row in texts(rows, lines=4)).splitlines()
    assert lines == [f"{row['prompt'].splitlines()[-1]}{row['answer']}" for row in rows]

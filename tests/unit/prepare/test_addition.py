"""The quickstart's data."""

from pathlib import Path

from services.prepare.addition import additions, write_rows


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

"""Of the versions on disk, those count that the surviving trainers made."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from schemas.state import Resumed
from services.replay.lineage import Written, surviving, versions_in


def _written(*pairs: tuple[int, int]) -> list[Written]:
    return [Written(step, incarnation, Path(f"version_{step}.{incarnation}")) for step, incarnation in pairs]


def _pairs(versions: list[Written]) -> list[tuple[int, int]]:
    return [(version.step, version.incarnation) for version in versions]


def test_one_trainer_made_them_all() -> None:
    assert _pairs(surviving(_written((2, 1), (0, 1), (1, 1)), [Resumed(incarnation=1, step=0)])) == [
        (0, 1),
        (1, 1),
        (2, 1),
    ]


def test_what_a_dead_trainer_made_after_its_successors_start_is_left_out() -> None:
    lineage = [Resumed(incarnation=1, step=0), Resumed(incarnation=2, step=2)]
    written = _written((1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (3, 2))
    assert _pairs(surviving(written, lineage)) == [(1, 1), (2, 2), (3, 2)]


def test_a_trainer_that_began_anew_leaves_nothing_of_the_others() -> None:
    lineage = [Resumed(incarnation=1, step=0), Resumed(incarnation=2, step=2), Resumed(incarnation=3, step=0)]
    assert _pairs(surviving(_written((1, 1), (2, 2), (3, 2), (0, 3), (1, 3)), lineage)) == [(0, 3), (1, 3)]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=6))
def test_the_survivors_are_one_path_of_steps(lives: list[tuple[int, int]]) -> None:
    """Each life goes on from `back` steps before where the last one ended, and makes `more` steps."""
    written, lineage, end, truth = [], [], 0, {}
    for number, (more, back) in enumerate(lives, start=1):
        begin = max(0, end - back)
        lineage.append(Resumed(incarnation=number, step=begin))
        truth = {step: life for step, life in truth.items() if step < begin}
        for step in range(begin, begin + more + 1):
            written.append((step, number))
            truth[step] = number
        end = begin + more
    assert _pairs(surviving(_written(*written), lineage)) == sorted(truth.items())


def test_directories_are_read_with_their_incarnations(tmp_path: Path) -> None:
    for name in ("version_0", "version_12", "version_12.3", ".version_4.writing", "other"):
        (tmp_path / name).mkdir()
    assert sorted(_pairs(versions_in(tmp_path))) == [(0, 1), (12, 1), (12, 3)]
    assert versions_in(tmp_path / "absent") == []

"""A directory under its final name is complete."""

import threading
from pathlib import Path

import pytest

from services.prepare.directory import made_by, make_once


def write(text: str, directory: Path) -> None:
    (directory / "file").write_text(text)


def test_a_directory_is_made_once_for_each_recipe(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "model"
    assert make_once(target, "1", lambda directory: write("a", directory))
    assert not make_once(target, "1", lambda directory: write("b", directory))
    assert (target / "file").read_text() == "a"
    assert make_once(target, "2", lambda directory: write("c", directory))
    assert (target / "file").read_text() == "c"
    assert made_by(target) == "2"


def test_what_was_broken_off_is_made_anew(tmp_path: Path) -> None:
    target = tmp_path / "model"

    def broken_off(directory: Path) -> None:
        write("half", directory)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_once(target, "1", broken_off)
    assert not target.exists()
    assert make_once(target, "1", lambda directory: write("whole", directory))
    assert (target / "file").read_text() == "whole"


def test_a_directory_without_its_marker_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "old").write_text("")
    assert made_by(target) is None
    assert make_once(target, "1", lambda directory: write("new", directory))
    assert not (target / "old").exists()


def test_two_who_ask_at_once_make_it_once(tmp_path: Path) -> None:
    begun: list[int] = []
    go_on = threading.Event()

    def make(directory: Path) -> None:
        begun.append(1)
        go_on.wait(5)
        write("a", directory)

    threads = [threading.Thread(target=make_once, args=(tmp_path / "model", "1", make)) for _ in range(2)]
    for thread in threads:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert begun == [1]

"""The table of who may do what is what the server is told."""

from pathlib import Path

import pytest

from bus.permissions import RIGHTS, Rights, Role

GUIDE = (Path(__file__).parents[3] / "docs" / "security.md").read_text(encoding="utf-8")


def _row(role: Role, rights: Rights) -> str:
    reads = [str(stream) for stream in rights.reads] + [f"{stream} (one at a time)" for stream in rights.peeks]
    frees = [str(stream) for stream in rights.purges] + [f"{stream} (one at a time)" for stream in rights.deletes]
    takes = ["tasks (takes)"] if rights.pulls_tasks else []
    cells = [_quoted(rights.says), ", ".join([*takes, *reads]), _quoted(rights.writes), ", ".join(frees)]
    return f"| {role} | " + " | ".join(cell or "-" for cell in cells) + " |"


def _quoted(patterns: tuple[str, ...]) -> str:
    return ", ".join(f"`{pattern}`" for pattern in patterns)


@pytest.mark.parametrize("role", RIGHTS)
def test_a_row_of_the_table_is_what_the_role_may(role: Role) -> None:
    assert _row(role, RIGHTS[role]) in GUIDE.splitlines()


def test_every_role_is_in_the_table() -> None:
    assert {*RIGHTS, Role.ADMIN} == set(Role)
    assert "| admin |" in GUIDE

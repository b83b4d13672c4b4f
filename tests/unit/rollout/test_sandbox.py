"""Programs that nobody has read: they run, and can neither hang, nor fill, nor reach beyond the machine."""

import ctypes
import os
import socket
import subprocess
from pathlib import Path

import pytest

from services.rollout.sandbox import Limits, run_python

SHORT = Limits(timeout_s=1.0)

_UNSHARE = ["unshare", "--user", "--net", "--pid", "--mount", "--ipc", "--fork", "true"]
needs_namespaces = pytest.mark.skipif(
    subprocess.run(_UNSHARE, capture_output=True).returncode != 0, reason="no namespaces for us on this machine"
)
needs_landlock = pytest.mark.skipif(ctypes.CDLL(None).syscall(444, None, 0, 1) < 1, reason="no Landlock in this kernel")


@pytest.fixture
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs run below `tmp_path`."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_a_program_reads_and_writes() -> None:
    ran = run_python("import sys\nprint(input()[::-1])\nprint('no', file=sys.stderr)", "abc\n")
    assert (ran.ended, ran.status, ran.stdout, ran.stderr) == ("exit", 0, "cba\n", "no\n")
    assert ran.is_well


def test_a_program_that_fails_says_how() -> None:
    ran = run_python("1/0")
    assert (ran.ended, ran.status) == ("exit", 1)
    assert ran.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert 'File "program.py", line 1' in ran.stderr
    assert not ran.is_well
    killed = run_python("import os; os.kill(os.getpid(), 11)")
    assert (killed.ended, killed.status) == ("signal", 11)
    assert run_python("import sys; sys.exit(3)").status == 3


@pytest.mark.parametrize("program", ["while True: pass", "import time; time.sleep(60)"])
def test_a_program_has_no_more_than_its_time(program: str) -> None:
    assert run_python(program, "", SHORT).ended == "time"


def test_a_program_holds_no_more_than_its_memory() -> None:
    program = "import time\nheld = [bytearray(1 << 20) for _ in range(400)]\ntime.sleep(9)"
    assert run_python(program, "", Limits(memory_mib=128)).ended == "memory"
    assert "MemoryError" in run_python("bytearray(1 << 33)", "", Limits(memory_mib=128)).stderr


def test_a_program_stores_no_more_than_its_share() -> None:
    many = "import itertools\nfor n in itertools.count(): open(f'{n}', 'wb').write(bytes(1 << 18))"
    assert run_python(many, "", Limits(disk_mib=8)).ended == "disk"
    small = "import itertools\nfor n in itertools.count(): open(f'{n}', 'wb')"
    assert run_python(small, "", Limits(files=50)).ended == "disk"
    flood = run_python("while True: print('x' * 1000)", "", Limits(disk_mib=2))
    assert len(flood.stdout) == 1 << 20
    assert not flood.is_well


@pytest.mark.parametrize(
    "act",
    [
        "os.fork()",
        "subprocess.run(['true'])",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "threading.Thread(target=print).start()",
        "multiprocessing.Process(target=print).start()",
    ],
)
def test_a_program_stays_one_process_with_one_thread(act: str) -> None:
    program = (
        "import multiprocessing, os, subprocess, threading\n"
        f"try: {act}\n"
        "except (OSError, RuntimeError) as error: print(type(error).__name__)\n"
    )
    ran = run_python(program)
    assert ran.stdout in ("BlockingIOError\n", "RuntimeError\n")
    assert ran.is_well


@needs_landlock
def test_a_program_changes_nothing_outside_its_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    kept = tmp_path / "kept"
    kept.write_text("kept")
    kept.chmod(0o666)
    program = (
        "import os\n"
        f"kept, other = {str(kept)!r}, {str(tmp_path / 'other')!r}\n"
        "for act in (lambda: open(kept, 'w'), lambda: os.remove(kept), lambda: open(other, 'w')):\n"
        "    try: act()\n"
        "    except OSError as error: print(error.errno)\n"
        "open('own', 'w').write('mine')\n"
        "print(open('own').read())\n"
    )
    assert run_python(program).stdout == "13\n13\n13\nmine\n"
    assert kept.read_text() == "kept"
    assert os.listdir(tmp_path) == ["kept"]


@needs_namespaces
def test_a_program_reaches_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = (
            f"import socket\ntry: socket.create_connection(('127.0.0.1', {port}), 2)\nexcept OSError: print('cut off')"
        )
        assert run_python(program).stdout == "cut off\n"


@needs_namespaces
def test_a_program_is_told_nothing_of_its_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    program = (
        "import os, glob\n"
        "found = str(dict(os.environ))\n"
        "for name in glob.glob('/proc/[0-9]*/environ'):\n"
        "    try: found += open(name).read()\n"
        "    except OSError: pass\n"
        "print('sesame' in found)\n"
    )
    assert run_python(program).stdout == "False\n"


@needs_namespaces
def test_a_program_cannot_end_its_supervisor() -> None:
    program = (
        "import os\n"
        "for pid in range(2, 1 << 16):\n"
        "    if pid != os.getpid():\n"
        "        try: os.kill(pid, 9)\n"
        "        except OSError: pass\n"
        "print('alone')\n"
    )
    ran = run_python(program)
    assert (ran.ended, ran.stdout) == ("exit", "alone\n")


def test_nothing_is_left_on_the_disk(own_directory: None, tmp_path: Path) -> None:
    run_python("import os; os.makedirs('a/b'); open('a/b/c', 'w'); os.chmod('a', 0)")
    run_python("while True: pass", "", SHORT)
    assert os.listdir(tmp_path) == []

"""The process that starts a sandboxed program, watches it, and ends it with all that it started.

Run as a file of its own, with nothing but the standard library. A program is one process with one thread: where that
cannot be held, it is not run. Namespaces and Landlock are left out where the kernel refuses them.
"""

import ctypes
import errno
import json
import os
import platform
import resource
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Any

NOBODY = 65534
POLL_S = 0.01
LOOK_S = 0.1
MIB = 1 << 20

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000  # unshare(2)
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, PR_SET_CHILD_SUBREAPER = 1, 38, 36  # prctl(2)
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446  # landlock(7), the same numbers on all machines
LANDLOCK_WRITES = {1: 0x1FF2, 2: 0x3FF2, 3: 0x7FF2}  # rights to write, make and remove, by version of the interface
LANDLOCK_WRITE_FILE = 0x2
LANDLOCK_TCP = 0x3
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2  # seccomp(2)
SECCOMP_ALLOW, SECCOMP_ERRNO, SECCOMP_KILL = 0x7FFF0000, 0x00050000, 0x80000000
BPF_LOAD, BPF_EQUAL, BPF_AT_LEAST, BPF_RETURN = 0x20, 0x15, 0x35, 0x06
X32_BIT = 0x40000000
MULTIPLYING = {  # by machine: the number of the architecture; clone, fork, vfork, clone3
    "x86_64": (0xC000003E, (56, 57, 58, 435)),
    "aarch64": (0xC00000B7, (220, 435)),
}

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    asked = json.loads(sys.argv[1])
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    directory = Path(asked["directory"])
    if not _can_hold_to_one_process():
        _tell("refused", -1, ["seccomp"])
        return
    drops = os.getuid() == 0 and _is_open_to_all(Path(sys.executable).resolve()) and _is_open_to_all(directory)
    if drops:
        os.chown(directory / "work", NOBODY, NOBODY)
    left_out: list[str] = [] if _unshare(is_user_kept=drops) else ["namespaces"]
    if _landlock_version() < 4:
        left_out.append("landlock")
    first = os.fork()
    if first == 0:
        _lead(asked, directory, drops)
    ended, status = _watched(first, asked, directory)
    _end_all(first)
    _tell(ended, status, left_out)


def _tell(ended: str, status: int, left_out: list[str]) -> None:
    """The answer to who started us."""
    print(json.dumps({"ended": ended, "status": status, "left_out": left_out}), flush=True)  # noqa: T201


def _is_open_to_all(path: Path) -> bool:
    return all(os.stat(place).st_mode & 0o001 for place in (path, *path.parents))


def _unshare(*, is_user_kept: bool) -> bool:
    """Namespaces without a network, and with process ids of their own; whether the kernel lets us have both."""
    uid, gid = os.getuid(), os.getgid()
    user = 0 if is_user_kept else CLONE_NEWUSER
    whole = CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNS
    taken = next((wanted for wanted in (whole, CLONE_NEWNET) if libc.unshare(user | wanted) == 0), 0)
    if user and taken:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    return taken == whole


def _landlock_version() -> int:
    """0 or less where there is none; from 4 on, TCP is shut too."""
    return int(libc.syscall(LANDLOCK_CREATE, None, 0, 1))


def _lead(asked: dict[str, Any], directory: Path, drops: bool) -> None:
    """The first process of the namespace: starts the program and ends with it, which ends all the others."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    program = os.fork()
    if program == 0:
        try:
            _become(asked, directory, drops)
        finally:
            os._exit(127)
    while True:
        pid, status = os.wait()
        if pid == program:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _become(asked: dict[str, Any], directory: Path, drops: bool) -> None:
    os.setsid()
    _redirect(directory)
    _limit(asked)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _lock_land(directory / "work")
    os.chdir(directory / "work")
    if drops:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    if not _hold_to_one_process():
        os._exit(127)
    environment = {"PATH": os.defpath, "LANG": "C.UTF-8", "HOME": ".", "TMPDIR": ".", "OPENBLAS_NUM_THREADS": "1"}
    os.execve(sys.executable, [sys.executable, "-I", "-B", "-c", _START], environment)


_START = "exec(compile(open(3, encoding='utf-8').read(), 'program.py', 'exec'))"


def _redirect(directory: Path) -> None:
    for number, (name, flags) in enumerate(
        (
            ("stdin", os.O_RDONLY),
            ("stdout", os.O_WRONLY | os.O_CREAT),
            ("stderr", os.O_WRONLY | os.O_CREAT),
            ("program.py", os.O_RDONLY),
        )
    ):
        opened = os.open(directory / name, flags, 0o600)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        os.set_inheritable(number, True)


def _limit(asked: dict[str, Any]) -> None:
    seconds = int(asked["timeout_s"]) + 1
    memory, disk = asked["memory_mib"] * MIB, asked["disk_mib"] * MIB
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, seconds, seconds + 1),
        (resource.RLIMIT_AS, 4 * memory, 4 * memory),  # addresses; what is really held is watched
        (resource.RLIMIT_FSIZE, disk, disk),
        (resource.RLIMIT_NOFILE, 64, 64),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        present = resource.getrlimit(kind)[1]
        most = hard if present == resource.RLIM_INFINITY else min(hard, present)
        resource.setrlimit(kind, (min(soft, most), most))


def _can_hold_to_one_process() -> bool:
    """Tried out on a child, which cannot be told from a program."""
    child = os.fork()
    if child == 0:
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if not _hold_to_one_process():
            os._exit(1)
        try:
            if os.fork() == 0:
                os._exit(0)
        except OSError:
            os._exit(0)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _hold_to_one_process() -> bool:
    """From now on this process can start no other and no thread: the kernel answers as where there is no room."""
    if platform.machine() not in MULTIPLYING:
        return False
    architecture, calls = MULTIPLYING[platform.machine()]
    number, machine = 0, 4  # where the kernel puts the call's number and the architecture
    deny = len(calls) + 1
    steps = [
        (BPF_LOAD, 0, 0, machine),
        (BPF_EQUAL, 1, 0, architecture),
        (BPF_RETURN, 0, 0, SECCOMP_KILL),
        (BPF_LOAD, 0, 0, number),
        (BPF_AT_LEAST, deny, 0, X32_BIT),
        *((BPF_EQUAL, deny - place - 1, 0, call) for place, call in enumerate(calls)),
        (BPF_RETURN, 0, 0, SECCOMP_ALLOW),
        (BPF_RETURN, 0, 0, SECCOMP_ERRNO | errno.EAGAIN),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(code))
    return bool(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0) == 0)


def _lock_land(work: Path) -> None:
    """Nothing outside `work` can be written, made or removed, and no TCP port reached, where there is Landlock."""
    version = _landlock_version()
    if version < 1:
        return
    writes = LANDLOCK_WRITES[min(version, max(LANDLOCK_WRITES))]
    rules = struct.pack("=QQ", writes, LANDLOCK_TCP) if version >= 4 else struct.pack("=Q", writes)
    ruleset = libc.syscall(LANDLOCK_CREATE, rules, len(rules), 0)
    if ruleset < 0:
        return
    for path, rights in ((work, writes), (Path("/dev"), LANDLOCK_WRITE_FILE)):
        place = os.open(path, os.O_PATH)
        libc.syscall(LANDLOCK_ADD, ruleset, 1, struct.pack("=Qi", rights, place), 0)
        os.close(place)
    libc.syscall(LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _watched(first: int, asked: dict[str, Any], directory: Path) -> tuple[str, int]:
    """How the program ended, or which limit it has met."""
    deadline = time.monotonic() + asked["timeout_s"]
    next_look = time.monotonic() + LOOK_S
    while True:
        pid, status = os.waitpid(first, os.WNOHANG)
        if pid:
            return _told(os.waitstatus_to_exitcode(status))
        now = time.monotonic()
        if now > deadline:
            return "time", -1
        if now > next_look:
            over = _over(asked, directory)
            if over:
                return over, -1
            next_look = now + LOOK_S
        time.sleep(POLL_S)


def _told(code: int) -> tuple[str, int]:
    """What the exit status of the first process says of the program's."""
    if code < 0:
        return "signal", -code
    if code > 128:
        return ("time" if code - 128 == signal.SIGXCPU else "signal"), code - 128
    return "exit", code


def _over(asked: dict[str, Any], directory: Path) -> str | None:
    if sum(map(_held_bytes, _descendants())) > asked["memory_mib"] * MIB:
        return "memory"
    files, size_bytes = _stored(directory)
    return "disk" if files > asked["files"] or size_bytes > asked["disk_mib"] * MIB else None


def _descendants() -> list[int]:
    """All processes that stem from this one, whatever session or group they have put themselves into."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        parent = _parent(int(entry)) if entry.isdigit() else None
        if parent is not None:
            children.setdefault(parent, []).append(int(entry))
    found, waiting = [], [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _parent(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None  # it has ended meanwhile
    return int(stat.rpartition(")")[2].split()[1])


def _held_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _stored(directory: Path) -> tuple[int, int]:
    files = size_bytes = 0
    for root, directories, names in os.walk(directory):
        files += len(directories) + len(names)
        for name in names:
            try:
                size_bytes += os.lstat(os.path.join(root, name)).st_size
            except OSError:
                continue  # removed meanwhile
    return files, size_bytes


def _end_all(first: int) -> None:
    """Kill until nothing is left: those that lost their parent have become our children."""
    _kill(first)
    while found := _descendants():
        for pid in found:
            _kill(pid)
        while _reaped():
            pass


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has ended


def _reaped() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] > 0
    except ChildProcessError:
        return False


if __name__ == "__main__":
    main()

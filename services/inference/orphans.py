"""Engine processes end when the service that started them is gone, however it died.

vLLM runs its engine in processes of its own, which a `kill -9` of their owner would leave behind with all their memory.
"""

import os
import signal
import threading
import time

OWNER = "TRINITY_ENGINE_OWNER"
_POLL_S = 1.0


def watch_owner() -> None:
    """Watch the process named by `OWNER` from a thread; end this engine's processes when it is gone."""
    owner = os.environ.get(OWNER)
    if owner is not None and os.path.exists("/proc/self/stat"):
        threading.Thread(target=_watch, args=(int(owner),), name="owner-watch", daemon=True).start()


def _watch(owner: int) -> None:
    while _is_alive(owner):
        time.sleep(_POLL_S)
    parent = os.getppid()
    if parent not in (1, owner):
        os.kill(parent, signal.SIGKILL)
    os._exit(1)


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

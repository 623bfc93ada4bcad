"""Is whoever typed ``make run`` still there?

A portal in the foreground ends with the shell that it was started from, also when
that shell was killed and no hang-up signal came. Who wants it to stay says so the
usual way, ``nohup make run &``; under systemd or as a container's first process
there is no such shell.
"""

import os
import select
import signal
from pathlib import Path

INIT = 1


class Starter:
    """Watches the parent, and through ``make`` the shell behind it. pidfd_open(2)."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handles: list[int] = []
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
            return
        parent = os.getppid()
        watched = [parent]
        if _name(parent) in ("make", "gmake"):
            watched.append(_parent(parent))
        for pid in watched:
            if pid <= INIT:
                continue
            try:
                handle = os.pidfd_open(pid)
            except (OSError, AttributeError):
                # Gone already, or a kernel older than 5.3: nothing to watch.
                continue
            self._handles.append(handle)
            self._poll.register(handle, select.POLLIN)

    def gone(self) -> bool:
        """Say whether one of them has ended. Does not wait."""
        return bool(self._handles) and bool(self._poll.poll(0))

    def close(self) -> None:
        """Let go of the handles."""
        for handle in self._handles:
            self._poll.unregister(handle)
            os.close(handle)
        self._handles.clear()


def _stat(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""


def _name(pid: int) -> str:
    return _stat(pid).partition("(")[2].rpartition(")")[0]


def _parent(pid: int) -> int:
    fields = _stat(pid).rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0

"""Whether the shell that started ``make run`` still runs.

A portal in the foreground ends with the shell that started it, also when that shell
was killed and no hang-up signal came. ``nohup make run &`` keeps it running, as usual.
Under systemd or as a container's first process there is no such shell.
"""

import os
import select
import signal

from telemetry.proc_stat import read_stat

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
        found = read_stat(parent)
        if found and found.comm in ("make", "gmake"):
            watched.append(found.ppid)
        for pid in watched:
            if pid <= INIT:
                continue
            try:
                handle = os.pidfd_open(pid)
            except (OSError, AttributeError):
                # Already gone, or a kernel older than 5.3: nothing to watch.
                continue
            self._handles.append(handle)
            self._poll.register(handle, select.POLLIN)

    def gone(self) -> bool:
        """Return whether one of the watched processes has ended. Does not wait."""
        return bool(self._handles) and bool(self._poll.poll(0))

    def close(self) -> None:
        """Close the handles."""
        for handle in self._handles:
            self._poll.unregister(handle)
            os.close(handle)
        self._handles.clear()

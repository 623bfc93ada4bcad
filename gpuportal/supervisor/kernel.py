"""The supervisor's calls of Linux: locks, death signals, orphans. prctl(2)."""

import ctypes
import fcntl
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class AlreadyRunning(Exception):
    """Another supervisor holds the lock of this folder."""

    def __init__(self, *, holder: str) -> None:
        self.holder = holder
        """Text of the other supervisor about itself; may be empty."""
        super().__init__(holder)


def take_lock(path: Path) -> IO[str]:
    """Take the lock of a folder, for as long as the returned file stays open.

    Children do not inherit it, because Python opens files close-on-exec. Only its user
    can open the file: who can open it can lock it.

    Raises:
        AlreadyRunning: another process holds it. Nothing was changed.
        OSError: it cannot be opened.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    file = os.fdopen(os.open(path, flags, 0o600), "a+")
    with suppress(PermissionError):
        # It was made by an older release.
        os.fchmod(file.fileno(), 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read(500).strip()
        file.close()
        raise AlreadyRunning(holder=holder) from None
    return file


def write_lock(file: IO[str], text: str) -> None:
    """Write the holder into the lock file."""
    file.seek(0)
    file.truncate()
    file.write(text)
    file.flush()


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies.

    Raises:
        OSError: the kernel refused.
    """
    if _LIBC is not None and _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent(signum: int) -> Callable[[], None]:
    """Return a function that a child runs before exec, so that it dies with its parent.

    The kernel sends the signal when the *thread* that forked ends, so only the main
    thread may start children. If the parent died before the request was made, the
    changed parent id shows it.
    """
    parent_pid = os.getpid()

    def before_exec() -> None:
        if _LIBC is not None:
            _LIBC.prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)
        if os.getppid() != parent_pid:
            os._exit(1)
        # A child must not inherit ignored or blocked signals.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    return before_exec


def send(pid: int, signum: int) -> None:
    """Send a signal to one process. A process that is gone is ignored."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return


def send_group(group: int, signum: int) -> None:
    """Send a signal to a process group. A group that is gone is ignored."""
    try:
        os.killpg(group, signum)
    except (ProcessLookupError, PermissionError):
        # EPERM: every member is a zombie that changed its user (kill(2)).
        return

"""Copy a Job's output from a pipe into its log. The shim does this.

The Job holds the pipe and never the file. It can add to its log, but it cannot truncate
the log or overwrite the portal's lines. The kernel moves the bytes (splice(2)), so a
gigabyte costs a fraction of a second. A Job that prints faster than the disk writes
waits in write(2), as with a file. When the disk is full, output is dropped and counted
and the Job continues. The log continues when there is space again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import select
import threading
import time

from placement.agent.storage import disk_space

PIPE_BYTES = 2**20
PIECE_BYTES = 2**16
LOOK_SECONDS = 0.2
FINISH_SECONDS = 30.0
FULL = (errno.ENOSPC, errno.EDQUOT)


class LogCopy:
    """Copies until every writer is gone, or until ``finish``."""

    def __init__(self, log: int) -> None:
        """``log``: descriptor of the file, opened without O_APPEND (splice(2))."""
        self.log = log
        self.source, self.sink = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # the user's pipes hold much already
            fcntl.fcntl(self.sink, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.lost_bytes = 0
        self._finishing = threading.Event()
        self._until = math.inf
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, once the Job has its end of the pipe."""
        os.close(self.sink)
        os.set_blocking(self.source, False)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Copy the rest once no process of the Job is left. Idempotent."""
        if self._thread is None:
            return
        # A process that cannot be killed, inside the driver, might print for ever.
        self._until = time.monotonic() + FINISH_SECONDS
        self._finishing.set()
        self._thread.join()
        self._thread = None
        os.close(self.source)

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self.source, select.POLLIN | select.POLLHUP)
        while time.monotonic() < self._until:
            last = self._finishing.is_set()
            ready = poller.poll(0 if last else LOOK_SECONDS * 1000)
            if (not ready and last) or (ready and not self._piece()):
                return

    def _piece(self) -> bool:
        """Copy the available bytes. False: every writer is gone."""
        try:
            if self.lost_bytes and disk_space.open_file_full_text(self.log):
                raise OSError(errno.ENOSPC, "full")
            moved = os.splice(self.source, self.log, PIPE_BYTES)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno not in FULL:
                raise
            dropped = len(os.read(self.source, PIECE_BYTES))
            self.lost_bytes += dropped
            return dropped > 0
        if self.lost_bytes and moved:
            lost, self.lost_bytes = self.lost_bytes, 0
            disk_space.write_log_line(
                self.log,
                f"\ngpuportal: {lost} bytes were not kept: the disk was full\n",
            )
        return moved > 0

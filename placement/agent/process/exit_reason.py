"""The reason of a Job's end: its shim, the portal's end, or ranks of other nodes."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from placement.agent.job_folder import JobFolder
from placement.protocol.commands import Order, remaining_seconds
from placement.protocol.job_parts import LOST_PEERS, lost_peers
from telemetry.protocol.sentences import sentence

TAIL_BYTES = 64 * 1024
"""More than the tracebacks of all ranks of a node and of their launcher."""
VMSTAT = Path("/proc/vmstat")
OUT_OF_MEMORY = sentence("the memory ran out, and the kernel ended processes")


@dataclass
class JobEnding:
    """The reason and the deadline of a Job's end."""

    reason: str
    kill_at: float
    """Monotonic time at which the remaining processes are killed."""
    stopped: bool = True
    """Whether a person or the clock ended it, not a fault of the Job."""
    lost: bool = False


class Deadline:
    """The Reservation's end by the monotonic clock, because the wall clock may jump."""

    def __init__(
        self, deadline_at: float, issued_at: float, early_seconds: float = 0.0
    ) -> None:
        self.at = 0.0
        """Monotonic time."""
        self.early_seconds = early_seconds
        """How long before the Reservation's end it is."""
        self._read_ns = 0
        self._set(deadline_at, issued_at)

    def _set(self, deadline_at: float, issued_at: float) -> None:
        remaining = remaining_seconds(deadline_at, issued_at, time.time())
        self.at = time.monotonic() + max(0.0, remaining - self.early_seconds)

    def reread(self, folder: JobFolder) -> bool:
        """Read an end that has moved. False: it has not moved since the last call."""
        try:
            changed_ns = (folder.path / "deadline.json").stat().st_mtime_ns
        except FileNotFoundError:
            return False
        if changed_ns == self._read_ns:
            return False
        self._read_ns = changed_ns
        moved = folder.read("deadline")
        self._set(float(moved["deadline_at"]), float(moved["issued_at"]))
        return True


def supervisor() -> int | None:
    """Return a descriptor that becomes readable when the supervisor ends."""
    text = os.environ.get("GPUPORTAL_SUPERVISOR_PID", "")
    if not text:
        return None
    try:
        return os.pidfd_open(int(text))
    except ProcessLookupError:
        # Gone already: a closed pipe is readable too.
        read, write = os.pipe2(os.O_CLOEXEC)
        os.close(write)
        return read


def broken_off(folder: JobFolder, order: Order) -> str:
    """Return the reason if a Job failed because ranks of other nodes were gone."""
    if order.meeting is None:
        return ""
    with folder.log.open("rb") as file:
        file.seek(max(0, folder.log_bytes() - TAIL_BYTES))
        told = file.read(TAIL_BYTES).decode(errors="replace")
    return LOST_PEERS if lost_peers(told) else ""


def memory_kills() -> int:
    """Return how often the kernel of this machine ended a process for its memory."""
    try:
        words = VMSTAT.read_text().split()
        return int(words[words.index("oom_kill") + 1])
    except (OSError, ValueError):
        return 0


def out_of_memory(status: int, kills_before: int) -> str:
    """Return the reason if the memory ran out, and that may have ended a Job.

    Args:
        status: of the Job's first process, as ``wait`` gives it.
        kills_before: `memory_kills` at the Job's start.
    """
    code = os.waitstatus_to_exitcode(status)
    killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)
    return OUT_OF_MEMORY if killed and memory_kills() > kills_before else ""

"""Slurm's own lines in the log of a job, in the portal's words. Pure.

Source: ``slurmstepd`` writes them into a job's output (Slurm 22.05,
``src/slurmd/slurmstepd/req.c``).
"""

from __future__ import annotations

import re

PREFIX = b"slurmstepd"
MOST_HELD_BYTES = 400
"""A longer line is not one of Slurm's."""
_CANCELLED = re.compile(
    rb"slurmstepd\S*: error: \*\*\* (?:JOB|STEP) \S+ (?:STEPID \S+ )?ON \S+ "
    rb"CANCELLED AT \S+(?: DUE TO ([A-Z ]+)(?:,.*)?)? \*\*\*\n?"
)
_WORDS = {
    b"": "the job is cancelled in Slurm",
    b"TIME LIMIT": "the job has no time left",
    b"PREEMPTION": "Slurm gives the node to another job",
    b"NODE FAILURE": "the node failed",
    b"JOB REQUEUE": "Slurm queues the job again",
}


def portal_line(line: bytes, *, expected: bool = False) -> bytes:
    r"""Return a line as the portal writes it. Lines of the job stay as they are.

    Args:
        expected: the portal ends the job, so a line without another reason is left out.

    >>> portal_line(b"slurmstepd-gp1: error: *** JOB 3 ON gp1 CANCELLED AT "
    ...             b"2026-11-29T10:09:16 DUE TO TIME LIMIT ***\n")
    b'gpuportal: the job has no time left\n'
    >>> portal_line(b"slurmstepd: loss=1\n")
    b'slurmstepd: loss=1\n'
    """
    match = _CANCELLED.fullmatch(line)
    if match is None:
        return line
    why = match[1] or b""
    if expected and not why:
        return b""
    words = _WORDS.get(why, f"Slurm ends the job: {why.decode().lower()}")
    return f"gpuportal: {words}\n".encode()


class LogLines:
    """Applies `portal_line` to a log that comes in pieces.

    A piece that ends inside a line of Slurm is held until the rest has come.
    """

    def __init__(self) -> None:
        self.expected = False
        """Whether the portal ends the job."""
        self._held = b""
        self._inside = False
        """Whether the last piece ended inside a line that has been passed on."""

    def take(self, piece: bytes) -> bytes:
        """Return what can be passed on of this piece and of what was held."""
        data, self._held = self._held + piece, b""
        first = b""
        if self._inside:
            end = data.find(b"\n") + 1
            if not end:
                return data
            first, data = data[:end], data[end:]
            self._inside = False
        start = data.rfind(b"\n") + 1
        whole, rest = data[:start], data[start:]
        if _may_be_slurms(rest):
            self._held, rest = rest, b""
        self._inside = bool(rest)
        if PREFIX in whole:
            lines = whole.splitlines(keepends=True)
            whole = b"".join(portal_line(one, expected=self.expected) for one in lines)
        return first + whole + rest

    def end(self) -> bytes:
        """Return what was held. No more comes."""
        held, self._held = self._held, b""
        return portal_line(held, expected=self.expected) if held else b""


def _may_be_slurms(rest: bytes) -> bool:
    head = rest[: len(PREFIX)]
    return bool(rest) and PREFIX.startswith(head) and len(rest) <= MOST_HELD_BYTES

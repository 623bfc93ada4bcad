"""Why Slurm refuses a command about a reservation.

Slurm has no codes in its output, so its sentences are read. They are those of
slurm_errno.c, which have not changed from 22.05 to 25.05.
"""

from enum import StrEnum

from telemetry.protocol.slurm_silence import is_silence
from telemetry.slurm.slurm_output import SlurmFailure


class SlurmAnswer(StrEnum):
    """What the sentence of an error means."""

    OVERLAP = "overlap"
    """Another reservation has a node in that time."""
    BUSY = "busy"
    """A job has a node beyond the start."""
    DUPLICATE = "duplicate"
    """A reservation of that name exists."""
    IN_USE = "in-use"
    """A job runs in the reservation."""
    UNKNOWN = "unknown"
    """There is no reservation of that name."""
    NO_USER = "no-user"
    """A Unix user does not exist where the controller runs. Slurm 22.05 says the same
    if the portal's user may not reserve."""
    NO_NODE = "no-node"
    DENIED = "denied"
    """The portal's user may not reserve."""
    SILENT = "silent"
    """No controller answered."""
    OTHER = "other"


_WORDS = {
    "overlaps with another reservation": SlurmAnswer.OVERLAP,
    "requested nodes are busy": SlurmAnswer.BUSY,
    "node configuration is not available": SlurmAnswer.BUSY,
    "duplicate reservation name": SlurmAnswer.DUPLICATE,
    "reservation is in use": SlurmAnswer.IN_USE,
    "reservation is invalid": SlurmAnswer.UNKNOWN,
    "reservation not found": SlurmAnswer.UNKNOWN,
    "invalid user": SlurmAnswer.NO_USER,
    "invalid node name": SlurmAnswer.NO_NODE,
    "access/permission denied": SlurmAnswer.DENIED,
}


class SlurmRefusal(SlurmFailure):
    """Slurm refuses a command about a reservation."""

    def __init__(self, text: str, answer: SlurmAnswer) -> None:
        super().__init__(text)
        self.answer = answer


def answer_of(text: str) -> SlurmAnswer:
    """Return what an error of scontrol means.

    >>> answer_of("scontrol: Error: Requested reservation is in use").value
    'in-use'
    """
    if is_silence(text):
        return SlurmAnswer.SILENT
    low = text.lower()
    return next((a for words, a in _WORDS.items() if words in low), SlurmAnswer.OTHER)

"""What Slurm does with a GPU, and the state in which the board shows it."""

import re
from enum import StrEnum

from telemetry.protocol.gpu_state import GpuState

CLUSTER_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
"""Slurm's own limit of ClusterName is 40 characters."""
READ_SECONDS = 15.0
"""How often Slurm is asked."""
OLD_SECONDS = 3 * READ_SECONDS
"""Facts of Slurm that are older count as old: three answers are missing."""


class SlurmUse(StrEnum):
    """What Slurm does with a GPU."""

    FREE = "free"
    BUSY = "busy"
    """A job has it."""
    RESERVED = "reserved"
    """A reservation holds it, and no job of the reservation has it yet."""
    CLOSED = "closed"
    """Its node is drained or under maintenance."""
    AWAY = "away"
    """Its node is down or does not answer."""


class WholeNodes(StrEnum):
    """Why a node of Slurm is reserved as a whole."""

    OLD = "old"
    """Its version does not keep the GPUs of several reservations apart."""
    NO_DATABASE = "no-database"
    """The cluster has no slurmdbd."""
    NOT_TRACKED = "not-tracked"
    """AccountingStorageTRES has no gres/gpu."""
    TYPE_NOT_TRACKED = "type-not-tracked"
    """AccountingStorageTRES does not have the type of its GPUs."""
    TYPES = "types"
    """It has GPUs of several types, or some without a type."""
    NO_CORES = "no-cores"
    """gres.conf does not name the processors near its GPUs. Without them a reservation
    of one GPU takes all processors of the node."""


_STATES = {
    SlurmUse.FREE: GpuState.FREE,
    SlurmUse.BUSY: GpuState.BUSY,
    SlurmUse.RESERVED: GpuState.RESERVED,
    SlurmUse.CLOSED: GpuState.MAINTENANCE,
    SlurmUse.AWAY: GpuState.LOST,
}


def slurm_state(use: str, age_seconds: float) -> GpuState:
    """Return the state of a GPU of Slurm.

    Args:
        use: a `SlurmUse`. Another word is one of a newer version.
        age_seconds: since Slurm's last answer.

    >>> slurm_state("busy", 20.0), slurm_state("busy", 60.0)
    (<GpuState.BUSY: 3>, <GpuState.STALE: 7>)
    """
    if age_seconds > OLD_SECONDS:
        return GpuState.STALE
    try:
        return _STATES[SlurmUse(use)]
    except ValueError:
        return GpuState.UNKNOWN

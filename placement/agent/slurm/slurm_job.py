"""The steps of the shim and the keeper for a Job of Slurm. They may be root."""

from __future__ import annotations

import logging
import os

from placement.agent.job_folder import JobFolder
from placement.agent.slurm import slurm_client
from placement.agent.slurm.job_script import FOLDER, job_name, limit_minutes
from placement.agent.slurm.slurm_client import SlurmRefused, SlurmUnavailable
from placement.agent.slurm.slurm_leader import LOST_FILE
from placement.protocol.commands import Order

logger = logging.getLogger(__name__)


def cancel(order: Order) -> None:
    """End the job of an attempt if Slurm still has it. Does nothing without Slurm.

    If Slurm does not answer, the job ends with its time limit, which is the end of the
    Reservation.
    """
    if order.slurm is None:
        return
    try:
        slurm_client.cancel(job_name(order), _owner(order))
    except (SlurmUnavailable, SlurmRefused) as error:
        logger.error("job %s is not cancelled in Slurm: %s", order.job, error)


def move_end(order: Order, left_seconds: float) -> None:
    """Give the job of an attempt so much more time. Needs the rights of an operator.

    Without them, or without an answer, the job keeps its first time limit.
    """
    if order.slurm is None or left_seconds <= 0:
        return
    try:
        found = slurm_client.find(job_name(order), _owner(order))
        if found is None:
            return
        ran = slurm_client.ran_seconds(found.job_id)
        minutes = limit_minutes(ran + left_seconds)
        words = [f"JobId={found.job_id}", f"TimeLimit={minutes}"]
        slurm_client.ask(["scontrol", "update", *words])
    except (SlurmUnavailable, SlurmRefused) as error:
        logger.error("job %s keeps its time limit in Slurm: %s", order.job, error)


def is_lost(order: Order, folder: JobFolder) -> bool:
    """Return whether Slurm lost the node of a Job, which is no fault of the Job."""
    if order.slurm is None:
        return False
    return os.path.lexists(folder.work / FOLDER / LOST_FILE)


def _owner(order: Order) -> str:
    """Return the user of the job, so that nobody else's job of that name counts."""
    root = os.geteuid() == 0
    return order.unix_user if root and order.unix_user else str(os.geteuid())

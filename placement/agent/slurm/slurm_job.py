"""The steps of the shim and the keeper for a Job of Slurm. They may be root."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path
from threading import Event

from placement.agent.job_folder import JobFolder, job_folders
from placement.agent.slurm import slurm_client
from placement.agent.slurm.job_script import (
    BEGUN_FOLDER,
    ENDED,
    EXIT,
    FOLDER,
    LOST_FILE,
    job_name,
    limit_minutes,
)
from placement.agent.slurm.slurm_client import SlurmRefused, SlurmUnavailable
from placement.protocol.commands import Order, parse_order
from telemetry.protocol.coded_error import CodedError

NOT_CANCELLED = "not-cancelled"
"""Name of the mark in the folder of a Job whose job in Slurm has to end."""
AGAIN_SECONDS = 10.0
logger = logging.getLogger(__name__)


def cancel(order: Order, folder: JobFolder) -> None:
    """End the job of an attempt if Slurm still has it. Does nothing without Slurm.

    Until Slurm has ended it, the folder is marked, and `cancel_marked` asks again: a
    controller that dies forgets a cancel of the last five seconds. At the latest the
    job ends with its time limit, the end of the Reservation.
    """
    if order.slurm is None:
        return
    name, owner = job_name(order), _owner(order)
    why = "Slurm has not ended it yet"
    try:
        found = slurm_client.find(name, owner)
        if found is None or found.state in ENDED:
            _mark(folder).unlink(missing_ok=True)
            return
        slurm_client.cancel(name, owner)
    except SlurmUnavailable as error:
        logger.warning("job %s is not cancelled in Slurm yet: %s", order.job, error)
        why = str(error)
    except SlurmRefused as error:
        logger.error("job %s is not cancelled in Slurm: %s", order.job, error)
        _mark(folder).unlink(missing_ok=True)
        return
    try:
        folder.write(NOT_CANCELLED, {"why": why})
    except OSError as full:
        logger.error("job %s: no mark to cancel it: %s", order.job, full)


def cancel_marked(jobs: Path) -> None:
    """Cancel the jobs that were to end, and that Slurm has not ended.

    Args:
        jobs: the folder of all Jobs of the agent.
    """
    for folder in job_folders(jobs):
        try:
            if _mark(folder).exists():
                cancel(parse_order(str(folder.read("order")["payload"])), folder)
        except (OSError, KeyError, CodedError) as error:
            logger.error("job %s is not cancelled in Slurm: %s", folder.name, error)


def run(jobs: Path, stop: Event) -> None:
    """Call `cancel_marked` again and again until the event is set."""
    while not stop.wait(AGAIN_SECONDS):
        cancel_marked(jobs)


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
    ours = folder.work / FOLDER
    return os.path.lexists(ours / LOST_FILE) and not os.path.lexists(ours / EXIT)


def is_of_slurm(folder: JobFolder) -> bool:
    """Return whether Slurm runs the Job of a folder."""
    try:
        return parse_order(str(folder.read("order")["payload"])).slurm is not None
    except (KeyError, CodedError):
        return False


def began_at(folder: JobFolder, submitted_at: float) -> float | None:
    """Return when Slurm began the program of a Job (Unix time). None: it waits.

    Args:
        submitted_at: when the Job's own process began, which submits it (Unix time).
    """
    ours = folder.work / FOLDER
    with contextlib.suppress(OSError):
        begun_at = (ours / BEGUN_FOLDER).lstat().st_mtime
        # The node may have another clock.
        return min(max(begun_at, submitted_at), time.time())
    return submitted_at if os.path.lexists(ours / EXIT) else None


def _mark(folder: JobFolder) -> Path:
    return folder.path / f"{NOT_CANCELLED}.json"


def _owner(order: Order) -> str:
    """Return the user of the job, so that nobody else's job of that name counts."""
    root = os.geteuid() == 0
    return order.unix_user if root and order.unix_user else str(os.geteuid())

"""The folder and checkpoint of an ended attempt on this node, for the next one."""

from __future__ import annotations

from pathlib import Path

from placement.agent.job_folder import JobFolder
from placement.agent.local_runner import shim_lives
from placement.agent.process.job_exec import CHECKPOINT
from placement.agent.storage import disk_space, folder_size, folder_tree
from placement.protocol.commands import Order, parse_order
from placement.protocol.node_refusals import OrderRefused

MOST_BEFORE = 100
"""Consecutive attempts without a checkpoint that are followed."""


def checkpoint_of(folder: JobFolder) -> Path:
    """Return the folder of an attempt's checkpoint, which need not exist.

    If the attempt ended before it had loaded the checkpoint that it was to resume from,
    return that one.
    """
    own = folder.work / CHECKPOINT
    for _ in range(MOST_BEFORE):
        if folder_tree.is_folder(folder.work / CHECKPOINT):
            return folder.work / CHECKPOINT
        payload = folder.read("order").get("payload")
        if not payload:
            break
        order = parse_order(str(payload))
        if not order.resume_job or order.checkpoints:
            break
        folder = previous_folder(order, folder.path.parent)
    return own


def previous_folder(order: Order, jobs: Path) -> JobFolder:
    """Return the folder of the attempt from which a Job on this node resumes."""
    return JobFolder.of(jobs, order.resume_job, order.resume_attempt, order.resume_key)


def size_of(folder: Path) -> int:
    """Return the bytes of the regular files below a folder. 0: it is missing.

    Raises:
        OrderRefused: ``checkpoint``, if it is nested too deeply.
    """
    try:
        return folder_size.content_bytes(folder)
    except folder_size.FoldersTooDeep as error:
        most = folder_size.MOST_DEPTH
        raise OrderRefused(
            "checkpoint", f"its folders are nested deeper than {most}"
        ) from error


def check(order: Order, jobs: Path) -> None:
    """Refuse for now if the previous attempt still runs, or there is too little space.

    Raises:
        OrderRefused: ``busy`` or ``storage``. The web orders it again.
    """
    if not order.resume_job:
        return
    sizes = [part.size_bytes for part in order.checkpoints]
    if sizes:
        # Each part is there packed while it is unpacked.
        disk_space.check_room(sum(sizes) + max(sizes), jobs, order.resume_job)
        return
    left = previous_folder(order, jobs)
    if shim_lives(left):
        raise OrderRefused(
            "busy", f"job {order.resume_job}, which it resumes from, has not ended"
        )
    disk_space.check_room(size_of(checkpoint_of(left)), jobs, order.resume_job)

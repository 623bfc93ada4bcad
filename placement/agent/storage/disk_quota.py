"""The disk quota of each person's Job folders on a node.

A thread of the node worker measures every folder and writes ``size.json`` into it. The
keeper removes the oldest folders of ended Jobs of a person who is over the limit, and
the order desk refuses a new Job if no folder is left to remove. The limit comes with
each order to start (``limits.person_bytes``): the person's last order counts.

The quota is checked periodically: a person can exceed it until the next measurement.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from placement.agent.job_folder import ENDS, JobFolder, job_folders
from placement.agent.process import previous_attempt
from placement.agent.storage import folder_size
from placement.protocol.commands import Order, parse_order
from placement.protocol.node_refusals import OrderRefused
from telemetry.protocol.units import format_bytes

LOOK_SECONDS = 10.0
RUNNING_SECONDS = 30.0
"""How old the size of a running Job's folder may be."""
ENDED_SECONDS = 600.0
"""How old it may be after the end. The user can still write there, by ssh."""
MOST_NAMED = 3
"""Folders that a refusal names."""
SIZE = "size"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredFolder:
    """The folder of one Job, and whose it is."""

    folder: JobFolder
    order: Order
    size_bytes: int
    ended_at: float | None
    """Unix time; None: it has not ended."""
    with_web: bool
    """Whether the portal has the end, the log and the results."""

    @property
    def may_go(self) -> bool:
        """Whether nothing is lost but what the folder is kept for."""
        return self.ended_at is not None and self.with_web


def holding_of(folder: JobFolder) -> StoredFolder | None:
    """Return the holding of a folder, or None if no order started a Job there.

    Raises:
        OSError, ValueError: a file in it cannot be read.
    """
    payload = folder.read("order").get("payload")
    if not payload:
        return None
    try:
        order = parse_order(str(payload))
    except OrderRefused:  # of a worker of another version
        return None
    status, reported = folder.read("status"), folder.read("reported")
    ended = status.get("event") in ENDS
    carry = folder.read("carry")
    told = all(reported.get(word) for word in ("ended", "uploaded", "results"))
    return StoredFolder(
        folder=folder,
        order=order,
        size_bytes=int(folder.read(SIZE).get("bytes", 0)),
        ended_at=float(status.get("ended_at") or 0) if ended else None,
        with_web=told and (not carry or bool(carry.get("done"))),
    )


def holdings(folders: Iterable[JobFolder]) -> dict[str, list[StoredFolder]]:
    """Return the folders by the login name of their person; bad ones are left out."""
    found: dict[str, list[StoredFolder]] = defaultdict(list)
    for folder in folders:
        try:
            one = holding_of(folder)
        except (OSError, ValueError, TypeError) as error:
            logger.error("job folder %s: %s", folder.name, error)
            continue
        if one is not None:
            found[one.order.user].append(one)
    return found


def to_remove(of_person: Sequence[StoredFolder]) -> list[StoredFolder]:
    """Return the folders to remove for a person over the quota, oldest first.

    A folder that an unfinished Job resumes from stays.
    """
    last = max(of_person, key=lambda one: one.order.issued_at, default=None)
    if last is None or not last.order.limits.person_bytes:
        return []
    over = sum(one.size_bytes for one in of_person) - last.order.limits.person_bytes
    needed = _folders_in_use(of_person)
    old = [one for one in of_person if one.may_go and one.folder.path not in needed]
    gone: list[StoredFolder] = []
    for one in sorted(old, key=lambda one: (one.ended_at or 0, one.folder.name)):
        if over <= 0:
            break
        if one.size_bytes:
            gone.append(one)
            over -= one.size_bytes
    return gone


def _folders_in_use(of_person: Sequence[StoredFolder]) -> set[Path]:
    """Return the folders that Jobs which have not ended may take a checkpoint from."""
    by_path = {one.folder.path: one for one in of_person}
    needed: set[Path] = set()
    for one in of_person:
        after: StoredFolder | None = one if one.ended_at is None else None
        while after is not None and after.order.resume_job:
            path = previous_attempt.previous_folder(
                after.order, one.folder.path.parent
            ).path
            if path in needed:
                break
            needed.add(path)
            after = by_path.get(path)
    return needed


def check(order: Order, jobs: Path) -> None:
    """Refuse to start a Job of a person whose folders leave no room to be made.

    Raises:
        OrderRefused: ``storage``, with the numbers; the web orders it again.
    """
    most = order.limits.person_bytes
    if not most:
        return
    own = holdings(job_folders(jobs)).get(order.user, [])
    needed = _folders_in_use(own)
    stay = [one for one in own if not one.may_go or one.folder.path in needed]
    held = sum(one.size_bytes for one in stay)
    if held < most:
        return
    largest = sorted(stay, key=lambda one: -one.size_bytes)[:MOST_NAMED]
    named = ", ".join(
        f"job {one.folder.job} {format_bytes(one.size_bytes)}" for one in largest
    )
    raise OrderRefused(
        "storage",
        f"the folders of your jobs hold {format_bytes(held)} here, and may hold "
        f"{format_bytes(most)}: {named}. Delete files in the folders of these jobs, or "
        "stop one of them",
    )


class FolderSizes:
    """Measures the folders of a node; ``run`` is a thread's whole life."""

    def __init__(self, jobs: Path) -> None:
        self.jobs = jobs

    def run(self, stop: threading.Event) -> None:
        """Measure until `stop` is set, for at most a twentieth of the time."""
        pause = LOOK_SECONDS
        while not stop.wait(pause):
            begun = time.monotonic()
            try:
                self.measure_folders(stop.is_set)
            except OSError as error:
                logger.error("the folders of jobs cannot be listed: %s", error)
            spent = time.monotonic() - begun
            pause = max(LOOK_SECONDS, spent / folder_size.MOST_SHARE)

    def measure_folders(self, stopped: Callable[[], bool] = lambda: False) -> int:
        """Measure the folders whose size is too old; how many."""
        done = 0
        for folder in job_folders(self.jobs):
            if stopped():
                break
            try:
                done += self._measure(folder)
            except (OSError, ValueError, TypeError) as error:
                # Removed meanwhile, or a full disk: the next look measures it.
                logger.info("job folder %s is not measured: %s", folder.name, error)
        return done

    def _measure(self, folder: JobFolder) -> bool:
        known, now = folder.read(SIZE), time.time()
        status = folder.read("status")
        ended = status.get("event") in ENDS
        measured_at = float(known.get("at", 0))
        old = now - measured_at > (ENDED_SECONDS if ended else RUNNING_SECONDS)
        just_ended = ended and measured_at <= float(status.get("ended_at") or 0)
        # A clock that was set back must not keep a size for ever.
        if not (old or just_ended or measured_at > now):
            return False
        try:
            size_bytes = folder_size.size_bytes(folder.path)
        except folder_size.FoldersTooDeep:
            size_bytes = _largest_size(folder)
        folder.write(SIZE, {"bytes": size_bytes, "at": now})
        return True


def _largest_size(folder: JobFolder) -> int:
    """Return what a folder that cannot be measured counts: all that there may be."""
    one = holding_of(folder)
    return one.order.limits.person_bytes + 1 if one is not None else 0

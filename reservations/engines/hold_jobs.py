"""Which jobs count to which holds, and whether a hold has room beside them. Pure.

After Slurm has lost a reservation, its jobs have none, and run on beside the new one.
In a hold of whole nodes they are all of its users' jobs there. A hold of some GPUs of a
node has as many of them as it has GPUs.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime

from reservations.engines.engine_port import HoldInfo
from reservations.engines.rules import most_held_gpus
from telemetry.slurm.placed_jobs import PlacedJob
from telemetry.slurm.slurm_records import SlurmJob

JobGpus = Mapping[tuple[int, str], int]
"""Number of GPUs by the number of the job and the node. Missing: it has none."""


def gpus_of_jobs(jobs: Iterable[SlurmJob]) -> Counter[tuple[int, str]]:
    """Return how many GPUs each job has on each node."""
    found: Counter[tuple[int, str]] = Counter()
    for job in jobs:
        for share in job.shares:
            found[job.job_id, share.node] += sum(one.count for one in share.gpus)
    return found


def is_counted(
    jobs: Iterable[PlacedJob], holds: Collection[HoldInfo], *, now: datetime
) -> bool:
    """Return whether `holds_of_jobs` needs the GPUs of jobs."""
    counted = [hold for hold in holds if hold.gpus_each]
    return any(any(_around(job, counted, now)) for job in jobs) if counted else False


def holds_of_jobs(
    jobs: Collection[PlacedJob],
    holds: Collection[HoldInfo],
    gpus: JobGpus,
    *,
    now: datetime,
) -> list[tuple[PlacedJob, str]]:
    """Return each job with the name of the hold to which it counts; "": to none."""
    left = {(hold.name, node): hold.gpus_each for hold in holds for node in hold.nodes}
    for job in jobs:
        for node in job.nodes if job.runs else ():
            if (job.reservation, node) in left:
                left[job.reservation, node] -= gpus.get((job.job_id, node), 0)
    told = []
    for job in jobs:
        name = job.reservation
        for hold in _around(job, holds, now):
            has = {
                (hold.name, node): gpus.get((job.job_id, node), 0) for node in job.nodes
            }
            fits = any(has.values()) and all(left[key] >= has[key] for key in has)
            if fits or not hold.gpus_each:
                name = hold.name
                left |= {key: left[key] - has[key] for key in has}
                break
        told.append((job, name))
    return told


def has_room(
    hold: HoldInfo,
    others: Iterable[HoldInfo],
    jobs: Collection[PlacedJob],
    gpus: JobGpus,
) -> bool:
    """Return whether a hold has its nodes or GPUs although jobs run there, because they
    are its users' jobs, or have other GPUs.

    Args:
        others: the other holds of the engine.
        jobs: those that run on nodes of the hold.
    """
    if not hold.gpus_each:
        return all(job.user in hold.users for job in jobs)
    held = most_held_gpus(hold, others)
    # The others' reservations have the GPUs of the jobs in them.
    loose = [job for job in jobs if job.reservation in ("", hold.name)]
    for node in hold.nodes:
        own = beside = 0
        for job in loose:
            number = gpus.get((job.job_id, node), 0)
            own += number if job.user in hold.users else 0
            beside += number if job.user not in hold.users else 0
        if held + beside + max(own, hold.gpus_each) > hold.of_each:
            return False
    return True


def _around(
    job: PlacedJob, holds: Iterable[HoldInfo], now: datetime
) -> Iterator[HoldInfo]:
    """Yield the holds in which a job without a reservation may have begun."""
    if job.reservation or not job.runs:
        return
    for hold in holds:
        inside = job.user in hold.users and set(job.nodes) <= {*hold.nodes}
        if inside and hold.start <= now < hold.end:
            yield hold

"""Refuse to give back Gpus on which a Job runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, tzinfo

from placement.models import Job
from placement.rules.job_refusals import JobRefusal
from reservations.models import Reservation
from telemetry.protocol.sentences import sentence

_ON_NODE = tuple(sorted(Job.State.on_node()))


@dataclass(eq=False)
class JobThere(JobRefusal):
    """A job that was started on all GPUs of its node still uses this one."""

    code = "job-there"
    title = sentence("A job runs there")
    job: int

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("Job #{job} runs on these GPUs. Stop it first.", job=self.job)


def check_nothing_runs(reservation: Reservation, gone: frozenset[int]) -> None:
    """Refuse to give back Gpus on which a Job of the Reservation runs.

    Raises:
        JobThere: names the first one.
    """
    nodes = reservation.allocations.filter(gpu_id__in=gone).values("gpu__node_id")
    job = (
        Job.objects.filter(
            reservation=reservation, state__in=_ON_NODE, node_id__in=nodes
        )
        .order_by("pk")
        .first()
    )
    if job is not None:
        raise JobThere(job=job.pk)

"""Bind the Jobs on nodes of Slurm to the GPUs that Slurm gave them."""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping

from django.conf import settings
from django.db import transaction

from placement.models import Job
from reservations.engines.bound_cards import CardHooks
from reservations.rules.engine_names import hold_name
from telemetry.models import SlurmGpu

_NAME = re.compile(r"gp-(\d{1,18})-(\d{1,9})-.*")
"""The name of an attempt in Slurm (``placement.agent.slurm.job_script``)."""


def follow(moved: Mapping[int, int], reservations: Collection[int]) -> None:
    """Exchange the Gpus of the live Jobs of these Reservations.

    Args:
        moved: the new Gpu of each Gpu that changes.
    """
    for job in Job.objects.live().filter(reservation_id__in=list(reservations)):
        _store(job, [moved.get(pk, pk) for pk in job.gpu_ids])


@transaction.atomic
def settle() -> None:
    """Store which Gpus of its Reservation each live Job has in Slurm.

    A student may give any job such a name. So it also has to run in the Reservation of
    the Job, and to have as many Gpus.
    """
    found: dict[tuple[int, int], list[SlurmGpu]] = defaultdict(list)
    rows = SlurmGpu.objects.filter(job_name__startswith="gp-", job_id__isnull=False)
    for row in rows.order_by("gpu__node", "gpu__index"):
        if match := _NAME.fullmatch(row.job_name):
            found[int(match[1]), int(match[2])].append(row)
    jobs = Job.objects.live().filter(pk__in={pk for pk, _attempt in found})
    for job in jobs.select_for_update(no_key=True, of=("self",)):
        name = hold_name(settings.SLURM_SITE, job.reservation_id)
        own = found.get((job.pk, job.attempt), [])
        gpus = [row.gpu_id for row in own if row.reservation == name]
        if len(gpus) == len(job.gpu_ids):
            _store(job, gpus)


def _store(job: Job, gpu_ids: list[int]) -> None:
    if gpu_ids != job.gpu_ids:
        Job.objects.filter(pk=job.pk).update(gpu_ids=gpu_ids)


HOOKS = CardHooks(follow=follow, settle=settle)

"""The task that adds charges for what people used in Slurm."""

import logging
from datetime import timedelta

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from reservations.fairshare.slurm_import import import_runs
from telemetry.live.broker_client import BROKER
from telemetry.slurm.slurm_commands import SlurmCommands
from telemetry.slurm.slurm_output import SlurmFailure

TURN = "reservations.slurm-import"
TURN_SECONDS = 600
"""Longer than `sacct` may take, and one import."""
DAYS = 2
"""How far back an import looks."""
NIGHT_HOUR, NIGHT_DAYS = 3, 31
"""In this hour (UTC) it looks further back, for the time in which it could not run."""
log = logging.getLogger(__name__)


@shared_task(name="reservations.tasks.import_slurm")  # type: ignore[untyped-decorator]
def import_slurm() -> dict[str, int]:
    """Add charges for the jobs of `SLURM_CLUSTER` that ended lately."""
    if not settings.SLURM_IMPORT or not BROKER.set(TURN, "1", nx=True, ex=TURN_SECONDS):
        return {}
    try:
        now = timezone.now()
        days = NIGHT_DAYS if now.hour == NIGHT_HOUR else DAYS
        commands = SlurmCommands(conf=settings.SLURM_CONF, folder=settings.SLURM_FOLDER)
        done = import_runs(commands.runs(now - timedelta(days=days), now), now=now)
    except SlurmFailure as error:
        log.warning("Slurm's usage is not imported: %s", error)
        return {}
    finally:
        BROKER.delete(TURN)
    return {"added": done.added, "left_out": done.left_out.total()}

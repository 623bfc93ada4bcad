"""The task that adds charges for what people used in Slurm."""

import logging
from contextlib import suppress

from celery import shared_task
from django.conf import settings
from django.utils import timezone
from redis.exceptions import LockNotOwnedError

from reservations.fairshare.slurm_import import SlurmImport, days_before, import_day
from telemetry.live.broker_client import BROKER
from telemetry.slurm.service import record_import
from telemetry.slurm.slurm_commands import SlurmCommands
from telemetry.slurm.slurm_output import SlurmFailure

TURN = "reservations.slurm-import"
TURN_SECONDS = 600
"""Longer than `sacct` may take for one day, and its import."""
DAYS = 2
"""How far back an import looks."""
NIGHT_HOUR, NIGHT_DAYS = 3, 31
"""In this hour (UTC) it looks further back, for the time in which it could not run."""
log = logging.getLogger(__name__)


@shared_task(name="reservations.tasks.import_slurm")  # type: ignore[untyped-decorator]
def import_slurm() -> dict[str, int]:
    """Add charges for the jobs of `SLURM_CLUSTER` that ended lately.

    How it ended is stored for `manage.py slurm check`.
    """
    turn = BROKER.lock(TURN, timeout=TURN_SECONDS)
    if not settings.SLURM_IMPORT or not turn.acquire(blocking=False):
        return {}
    done = SlurmImport()
    now = timezone.now()
    days = NIGHT_DAYS if now.hour == NIGHT_HOUR else DAYS
    commands = SlurmCommands(conf=settings.SLURM_CONF, folder=settings.SLURM_FOLDER)
    try:
        for start, end in days_before(now, days):
            turn.reacquire()
            import_day(commands, start, end, now=now, done=done)
        record_import(settings.SLURM_CLUSTER, done.failure, at=now)
    except LockNotOwnedError:
        log.warning("Slurm's usage: another worker has taken over the import")
    except SlurmFailure as error:
        log.warning("Slurm's usage is not imported: %s", error)
        record_import(settings.SLURM_CLUSTER, str(error), at=None)
    finally:
        with suppress(LockNotOwnedError):
            turn.release()
    return {"added": done.added, "left_out": done.left_out.total()}

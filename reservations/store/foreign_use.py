"""Gpus that are in use by a process without a right to them."""

from reservations.rules.booking_alerts import INTRUDER, OVERRUN, SQUATTER
from telemetry.models import Alert
from telemetry.models.alerts import AlertQuerySet

RULES = (INTRUDER, OVERRUN, SQUATTER)
SOON_SECONDS = 3600
"""How long such a process is expected to stay. Later starts get no warning."""


def foreign_alerts() -> AlertQuerySet:
    """Return the open alerts of foreign processes on single Gpus."""
    return Alert.objects.open().filter(rule__in=RULES).exclude(gpu=None)


def foreign_gpus() -> frozenset[int]:
    """Return the Gpus that a foreign process uses now, in one query."""
    return frozenset(foreign_alerts().order_by().values_list("gpu_id", flat=True))

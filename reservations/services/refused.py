"""Counts what was asked for and refused: a row a day, Membership, Pool and rule.

Called after a refusal, when its transaction is rolled back. Reports show it as demand
that the Gpus could not serve, so what was only asked wrongly (off the grid, in the
past) does not count, and a preview never does.
"""

import logging
from collections import Counter
from collections.abc import Collection
from datetime import datetime

from django.db import DatabaseError, IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from reservations.domain.errors import Refusal
from reservations.domain.policy import LONGEST_POSSIBLE_SECONDS
from reservations.models import Membership, RefusedDemand
from reservations.services.turns import turn
from telemetry.models import Gpu

NO_DEMAND = frozenset(
    {
        "in-the-past",
        "off-grid",
        "no-gpus",
        "membership-needed",
    }
)
log = logging.getLogger(__name__)


def count_refusal(
    membership: Membership,
    gpu_ids: Collection[int],
    start: datetime,
    end: datetime,
    *,
    refusal: Refusal,
    now: datetime,
) -> None:
    """Add a refused booking to its day.

    A report is not worth an error page: where the row cannot be written, the log says
    so and the refusal goes on to whoever asked.
    """
    if refusal.code in NO_DEMAND:
        return
    seconds = int((end - max(start, now)).total_seconds())
    seconds = max(0, min(seconds, LONGEST_POSSIBLE_SECONDS))
    pools = Counter(
        Gpu.objects.filter(pk__in=set(gpu_ids)).values_list("pool_id", flat=True)
    )
    day = timezone.localtime(now).date()
    try:
        for pool, gpus in sorted(pools.items()):
            key = {
                "day": day,
                "membership": membership,
                "pool_id": pool,
                "rule": refusal.code[:40],
            }
            with turn():
                _add(key, gpus * seconds)
    except DatabaseError:
        log.exception("a refusal of membership %s is not counted", membership.pk)


def _add(key: dict[str, object], gpu_seconds: int) -> None:
    """Add to one row, made where it is the first of its day."""
    rows = RefusedDemand.objects.filter(**key)
    more = {
        "requests": F("requests") + 1,
        "gpu_seconds": F("gpu_seconds") + gpu_seconds,
    }
    if rows.update(**more):
        return
    try:
        with transaction.atomic():
            RefusedDemand.objects.create(**key, requests=1, gpu_seconds=gpu_seconds)
    except IntegrityError:
        # Somebody else's refusal of the same kind made the row just now.
        rows.update(**more)

"""Steps 3 and 4 of the tick, for each running Reservation.

``no_show_release.py`` checks its holder in or releases it after a no-show.
``idle_release.py`` warns about idle Gpus and releases them.
"""

import logging
from collections.abc import Sequence
from datetime import datetime

from reservations.models import Allocation, Reservation
from reservations.presence import idle_release, no_show_release
from reservations.rules.policy import Policy
from telemetry.rules.isolated_steps import isolated

log = logging.getLogger(__name__)


def check(now: datetime, policy: Policy) -> dict[str, int]:
    """Check in, release no-shows, warn and release idle ones. Return the counts."""
    done = {"checked_in": 0, "no_shows": 0, "idle_warned": 0, "idle_released": 0}
    running = list(
        # Ended Reservations too: a late tick still finds no-shows.
        Reservation.objects.active().filter(start__lt=now).order_by("pk")
    )
    gpus = _gpu_ids(running)
    for row in running:
        with isolated(log, "reservation %s: looking for its holder failed", row.pk):
            word, own = "", gpus.get(row.pk, [])
            if row.checked_in_at is None:
                word = no_show_release.check_in_or_release(row, own, now, policy)
            elif policy.release_idle and row.end > now:
                word = idle_release.warn_or_release(row, own, now, policy)
            if word:
                done[word] += 1
    return done


def _gpu_ids(rows: Sequence[Reservation]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    pairs = Allocation.objects.filter(reservation__in=[row.pk for row in rows])
    for pk, gpu in pairs.order_by().values_list("reservation_id", "gpu_id"):
        found.setdefault(pk, []).append(gpu)
    return found

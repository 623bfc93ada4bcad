"""Free Gpus, and until when they are free, for Jobs in gaps."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

from reservations.models import Allocation
from reservations.rules.calendar import Calendar, CalendarGpu
from reservations.rules.fairness.preemption import Displacer
from reservations.rules.gaps import OpenGpu, open_until
from reservations.rules.lifecycle import Kind, State
from reservations.rules.policy import Policy
from reservations.rules.request import Holding
from reservations.rules.window import Window
from reservations.store.booking_facts import plans_between
from reservations.store.booking_snapshot import calendar_of
from reservations.store.gpu_rows import calendar_gpus
from telemetry.models import Alert, Gpu

UNDO_SECONDS = 15
"""A cancellation can be undone for this long, so its Gpus are not used meanwhile."""
HEARD_SECONDS = 30
"""A Gpu of a node without news for longer than this may not be free."""


def open_calendar(
    gpus: Sequence[CalendarGpu], now: datetime, until: datetime
) -> Calendar:
    """Return the calendar that limits gaps: all bookings, held gaps, closures,
    plans.
    """
    held = calendar_of(gpus, now, until)
    # No one is user 0 and nothing freezes, so everybody's plans are included.
    plans = plans_between(now, until, Displacer(0, now, freeze_seconds=0))
    return Calendar(gpus, held.busy(), plans)


def open_gpus(now: datetime, policy: Policy) -> list[OpenGpu]:
    """Return the Gpus that are free and healthy now, with the ends of their gaps."""
    heard = now - timedelta(seconds=HEARD_SECONDS)
    undone = now - timedelta(seconds=UNDO_SECONDS)
    alerted = Alert.objects.open().exclude(gpu=None).values("gpu_id")
    cancelled = Allocation.objects.filter(
        reservation__state=State.CANCELLED, reservation__cancelled_at__gt=undone
    ).values("gpu_id")
    rows = (
        Gpu.objects.bookable()
        .filter(node__last_seen_at__gt=heard)
        .exclude(pk__in=alerted)
        .exclude(pk__in=cancelled)
        .order_by("pk")
    )
    uuids = dict(rows.values_list("pk", "uuid"))
    gpus = calendar_gpus(rows)
    latest = now + timedelta(seconds=policy.longest_seconds)
    calendar = open_calendar(gpus, now, latest)
    found = [
        OpenGpu(gpu, uuids[gpu.pk], open_until(calendar, gpu.pk, now, latest))
        for gpu in gpus
        if gpu.pk in uuids
    ]
    return [one for one in found if one.until > now]


def whole_holdings(user_pk: int) -> tuple[Holding, ...]:
    """Return all that a User holds or has booked, including gaps and overstays."""
    rows = Allocation.objects.filter(
        reservation__user_id=user_pk, reservation__state__in=State.live()
    )
    found: dict[int, set[int]] = defaultdict(set)
    windows = {}
    for pk, start, end, kind, gpu in rows.order_by("reservation_id").values_list(
        "reservation_id", "start", "end", "reservation__kind", "gpu_id"
    ):
        if end > start:
            found[pk].add(gpu)
            windows[pk] = (Window(start, end), kind)
    return tuple(
        Holding(pk, windows[pk][0], frozenset(gpus), Kind(windows[pk][1]))
        for pk, gpus in found.items()
    )

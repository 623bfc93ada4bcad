"""Which Gpus nobody holds now, and until when: what Jobs in gaps may take."""

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
"""A cancel may be taken back for so long: its Gpus are left alone."""
HEARD_SECONDS = 30
"""A Gpu whose node was not heard of for longer is not known to be free."""


def open_calendar(
    gpus: Sequence[CalendarGpu], now: datetime, until: datetime
) -> Calendar:
    """Return what a gap ends at: everybody's bookings, gaps held, closures, plans."""
    held = calendar_of(gpus, now, until)
    # Nobody is user 0 and nothing freezes: everybody's plans are in it.
    plans = plans_between(now, until, Displacer(0, now, freeze_seconds=0))
    return Calendar(gpus, held.busy(), plans)


def open_gpus(now: datetime, policy: Policy) -> list[OpenGpu]:
    """Return the Gpus that are free and sound now, with the ends of their gaps."""
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
    """Return all that a User holds or has booked, gaps and overstays whole."""
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

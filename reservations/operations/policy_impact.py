"""Count the effects of a change of the booking policy on existing bookings."""

from datetime import datetime, timedelta

from django.db.models import Count, F

from reservations.models import Membership, Reservation
from reservations.operations.policy_fields import Changes
from reservations.rules.lifecycle import Kind
from reservations.rules.window import on_grid
from telemetry.protocol.sentences import sentence

KEPT = sentence("they do not change")


def effect_sentences(changes: Changes, now: datetime) -> list[str]:
    """Return sentences about the effects of a change.

    A change of the rules never takes a booking away
    (docs/design/fair-booking.md#i2, #i3).
    """
    found: list[str] = []
    live = Reservation.objects.live()
    for name, (_old, new) in changes.items():
        if name == "grid_seconds" and isinstance(new, int):
            off = sum(
                not on_grid(end, new) for end in live.values_list("end", flat=True)
            )
            found.append(
                sentence(
                    "{off} bookings do not end on a step of the new grid: {kept}.",
                    off=off,
                    kept=KEPT,
                )
            )
        elif name == "longest_seconds" and isinstance(new, int):
            long = live.filter(end__gt=F("start") + timedelta(seconds=new)).count()
            found.append(
                sentence(
                    "{long} bookings are longer than that: {kept}.",
                    long=long,
                    kept=KEPT,
                )
            )
        elif name == "firm_horizon_seconds" and isinstance(new, int):
            far = live.filter(start__gt=now + timedelta(seconds=new)).count()
            found.append(
                sentence(
                    "{far} bookings begin beyond that: {kept}.", far=far, kept=KEPT
                )
            )
        elif name == "flex_horizon_seconds" and isinstance(new, int):
            beyond = now + timedelta(seconds=new)
            far = live.filter(kind=Kind.FLEX, start__gt=beyond).count()
            found.append(
                sentence(
                    "{far} flex bookings begin beyond that: {kept}.", far=far, kept=KEPT
                )
            )
        elif name == "freeze_seconds" and isinstance(new, int):
            ahead = live.filter(kind=Kind.FLEX, start__gt=now)
            frozen = ahead.filter(start__lte=now + timedelta(seconds=new)).count()
            found.append(
                sentence(
                    "{frozen} flex bookings are frozen from then on.", frozen=frozen
                )
            )
        elif name == "live_reservations" and isinstance(new, int):
            many = live.order_by().values("user_id").annotate(n=Count("pk"))
            over = many.filter(n__gt=new).count()
            found.append(
                sentence(
                    "{over} people have more than that: {kept}.", over=over, kept=KEPT
                )
            )
        elif name == "quota_gpu_seconds":
            count = Membership.objects.filter(active=True, quota_gpu_seconds=None)
            found.append(
                sentence(
                    "It applies to {count} memberships without their own "
                    "quota. People who hold more keep their bookings but "
                    "cannot book more.",
                    count=count.count(),
                )
            )
        elif name == "half_life_seconds":
            found.append(
                sentence("Ranks change at once. Use Replay to see the effect.")
            )
        elif name == "names_visible":
            found.append(sentence("Open pages change within a minute."))
    return found

"""The signed-in User, and the User's choices in forms."""

from dataclasses import dataclass
from datetime import datetime

from django.core.exceptions import PermissionDenied
from django.db.models import F
from django.http import HttpRequest

from placement.jobs import queries as snapshots
from reservations.models import Reservation, User
from reservations.store.co_users import usable_by
from telemetry.models import Node


@dataclass(frozen=True)
class OwnReservation:
    """One of the User's Reservations, as a choice in forms."""

    pk: int
    label: str
    purpose: str
    nodes: tuple[str, ...]
    gpu_uuids: frozenset[str]
    simulated: bool
    start: datetime
    end: datetime
    isolated: bool
    """Whether some node of it runs Jobs as separate Unix users."""


def reader(request: HttpRequest) -> User:
    """Return the signed-in User. LoginRequiredMiddleware lets no others through.

    Raises:
        PermissionDenied: the middleware was removed from the settings.
    """
    if not isinstance(request.user, User):
        raise PermissionDenied
    return request.user


def usable_reservations(user: User, now: datetime) -> list[OwnReservation]:
    """Return the Reservations in which a User may run Jobs, the soonest first."""
    rows = (
        Reservation.objects.live()
        .filter(usable_by(user), end__gt=now, booked_end__gt=F("start"))
        .order_by("start")
        .prefetch_related("allocations__gpu__node")
    )
    return [_own_reservation(row) for row in rows]


def _own_reservation(row: Reservation) -> OwnReservation:
    gpus = [a.gpu for a in row.allocations.all() if a.live]
    return OwnReservation(
        pk=row.pk,
        label=snapshots.reservation_label(row),
        purpose=row.purpose,
        nodes=tuple(sorted({gpu.node.name for gpu in gpus})),
        gpu_uuids=frozenset(gpu.uuid for gpu in gpus),
        start=row.start,
        end=row.end,
        simulated=any(gpu.node.simulated for gpu in gpus),
        isolated=any(gpu.node.isolation != Node.Isolation.NONE for gpu in gpus),
    )

"""Charts and sums of the Gpus of an Account or a Reservation: /api/v1/..."""

from datetime import UTC, datetime
from typing import TypedDict

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Query, Router

from reservations.models import Account, Reservation
from reservations.store.access import (
    charted_accounts,
    reader,
    visible_reservations,
)
from reservations.store.gpu_history import (
    of_account,
    of_reservation,
    reservation_usage,
)
from telemetry.history.charts import (
    HistoryAnswer,
    UsageAnswer,
    answer_history,
    requested_range,
    usage_entry,
)
from telemetry.history.schemas import HistoryIn
from telemetry.web.answer_types import CsvAnswer

router = Router(tags=["history"])


class ReservationUsage(TypedDict):
    """The summary of a reservation."""

    reservation: int
    usage: UsageAnswer | None
    """Null: unknown."""


@router.get("/accounts/{int:account_id}/history")
def account_history(
    request: HttpRequest, account_id: int, wish: Query[HistoryIn]
) -> HistoryAnswer | CsvAnswer:
    """The use of GPUs while a group, or a group below it, held them.

    For its members, its heads and the operator.
    """
    seen = charted_accounts(reader(request))
    account = get_object_or_404(Account, pk=account_id, pk__in=seen)
    now = timezone.now()
    asked = requested_range(wish, now=now)
    subject = of_account(
        account, start=_utc_instant(asked.start), end=_utc_instant(asked.end)
    )
    return answer_history(subject, wish, now=now)


@router.get("/reservations/{int:reservation_id}/history")
def reservation_history(
    request: HttpRequest, reservation_id: int, wish: Query[HistoryIn]
) -> HistoryAnswer | CsvAnswer:
    """The use of a reservation's GPUs while it held them."""
    subject = of_reservation(_reservation(request, reservation_id))
    return answer_history(subject, wish, now=timezone.now())


@router.get("/reservations/{int:reservation_id}/usage")
def reservation_summary(request: HttpRequest, reservation_id: int) -> ReservationUsage:
    """The summary of a reservation, so far if it is running. Null: unknown."""
    found = _reservation(request, reservation_id)
    usage = reservation_usage(found, now=timezone.now())
    return {"reservation": found.pk, "usage": usage_entry(usage) if usage else None}


def _reservation(request: HttpRequest, pk: int) -> Reservation:
    """Return a Reservation that the reader may see. Otherwise 404, without details."""
    seen = Reservation.objects.filter(visible_reservations(reader(request)))
    return get_object_or_404(seen, pk=pk)


def _utc_instant(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)

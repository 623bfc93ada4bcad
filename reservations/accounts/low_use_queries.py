"""The use of a group's Gpus while its members held them."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from reservations.accounts.low_use import HeldUse, sum_of_uses
from reservations.models import Reservation
from reservations.store.gpu_history import HELD
from telemetry.models import UsageSummary

MOST_RESERVATIONS = 5_000
"""The newest Reservations of one group that a report covers."""


@dataclass(frozen=True)
class HeldReservation:
    """One ended Reservation, with the use of its Gpus."""

    reservation: Reservation
    use: HeldUse


def held_uses(
    account_pks: Collection[int], *, since: datetime, now: datetime
) -> list[HeldReservation]:
    """Return the Reservations of a group that ended since an instant and have a
    summary.
    """
    rows = (
        Reservation.objects.filter(
            membership__account_id__in=account_pks,
            state__in=HELD,
            end__gt=since,
            end__lte=now,
        )
        .select_related("user", "membership__account")
        .order_by("-end", "-pk")[:MOST_RESERVATIONS]
    )
    by_pk = {row.pk: row for row in rows}
    found: dict[int, HeldUse] = {}
    pks = list(by_pk)
    for first in range(0, len(pks), 500):
        kept = UsageSummary.objects.filter(
            kind=UsageSummary.Kind.RESERVATION,
            gpu=None,
            reservation_id__in=pks[first : first + 500],
        )
        for summary in kept:
            found[summary.reservation_id] = HeldUse(
                summary.gpu_seconds, summary.util_n, summary.util_sum_pct
            )
    return [HeldReservation(row, found[pk]) for pk, row in by_pk.items() if pk in found]


def by_member(held: Collection[HeldReservation]) -> dict[int, HeldUse]:
    """Return the sum of the uses of each Membership."""
    uses: dict[int, list[HeldUse]] = defaultdict(list)
    for one in held:
        uses[one.reservation.membership_id].append(one.use)
    return {pk: sum_of_uses(some) for pk, some in uses.items()}

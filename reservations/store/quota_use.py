"""What counts in quotas near a span: firm time held, and late hours at their part."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from reservations.models import Allocation, LateReturn, Membership, Reservation
from reservations.rules.fairness.quota import PERMILLE, QuotaInfo, Spend, spends_at
from reservations.rules.lifecycle import Kind, State
from reservations.rules.policy import LONGEST_POSSIBLE_SECONDS, Policy
from reservations.rules.prices import Tariff, read_peak
from reservations.rules.window import unix
from telemetry.protocol.sentences import sentence

HOLDING = State.holding()
LONGEST = timedelta(seconds=LONGEST_POSSIBLE_SECONDS)


def spends_of(
    members: Collection[int],
    low: datetime,
    high: datetime,
    *,
    account: str = "membership_id",
    ignoring: int | None = None,
    ignoring_late: int | None = None,
) -> list[tuple[int, int, Spend]]:
    """Return (Membership, value of ``account``, firm cost) between two instants.

    Staying on past the booked end is flex: it counts nowhere.

    Args:
        account: a field of the Reservation that is told beside the Membership.
        ignoring: a Reservation that is about to change.
        ignoring_late: one whose late hours are about to be held again.
    """
    members, by_account = list(members), account != "membership_id"
    held = _held(
        members=members,
        low=low,
        high=high,
        longest=low - LONGEST,
        ignoring=ignoring or 0,
        by_account=by_account,
    )
    late = _late(
        members=members,
        low=low,
        high=high,
        ignoring=ignoring_late or 0,
        by_account=by_account,
    )
    found = [
        (pk, group, Spend(unix(begin), unix(over), weight * part))
        for pk, group, begin, over, weight, part in late
    ]
    by_the_hour: dict[int, tuple[int, int]] = {}
    for pk, group, begin, over, booked, cost, kind, state, peaked, own in held:
        first, last = unix(begin), unix(over)
        # Here and not in SQL: without statistics SQLite would search by state.
        if last <= first or kind != Kind.FIRM or state not in HOLDING:
            continue
        if peaked:
            by_the_hour[own] = (pk, group)
        else:
            rate = cost * PERMILLE // (last - first)
            found.append((pk, group, Spend(first, min(last, unix(booked)), rate)))
    found += [(*by_the_hour[own], one) for own, one in _by_the_hour(by_the_hour)]
    return found


def _held(
    *,
    members: Collection[int],
    low: datetime,
    high: datetime,
    longest: datetime,
    ignoring: int,
    by_account: bool,
) -> QuerySet[Reservation, Any]:
    rows = Reservation.objects.filter(
        start__lt=high, start__gt=longest, end__gt=low, membership_id__in=members
    )
    if ignoring:
        rows = rows.exclude(pk=ignoring)
    return rows.order_by().values_list(
        *("membership_id", _column(by_account), "start", "end", "booked_end"),
        *("cost_gpu_seconds", "kind", "state", "peaked", "pk"),
    )


def _late(
    *,
    members: Collection[int],
    low: datetime,
    high: datetime,
    ignoring: int,
    by_account: bool,
) -> QuerySet[LateReturn, Any]:
    rows = LateReturn.objects.filter(
        membership_id__in=members, firm=True, start__lt=high, end__gt=low
    )
    if ignoring:
        rows = rows.exclude(reservation_id=ignoring)
    return rows.order_by().values_list(
        *("membership_id", _column(by_account)),
        *("start", "end", "weight", "permille"),
    )


def _column(by_account: bool) -> str:
    return "membership__account_id" if by_account else "membership_id"


def _by_the_hour(pks: Collection[int]) -> Iterator[tuple[int, Spend]]:
    """Yield (Reservation, cost) of Allocations, each at the price it was booked at.

    Up to the booked end: staying on past it counts nowhere. No query for none.
    """
    if not pks:
        return
    rows = Allocation.objects.filter(reservation_id__in=pks).order_by()
    for pk, pool, begin, over, booked, weight, weight_now, peak in rows.values_list(
        "reservation_id",
        "gpu__pool_id",
        "start",
        "end",
        "reservation__booked_end",
        "weight",
        "gpu__pool__weight",
        "peak",
    ):
        first, last = unix(begin), unix(min(over, booked))
        if last > first:
            tariff = Tariff.of(
                weight_now if weight is None else weight, read_peak(peak)
            )
            for spend in spends_at(first, last, rate=tariff, pool_pk=pool):
                yield pk, spend


def person_quota(
    membership: Membership,
    low: datetime,
    high: datetime,
    *,
    policy: Policy,
    ignoring: int | None = None,
    ignoring_late: int | None = None,
    extra: Sequence[Spend] = (),
    known: Sequence[Spend],
) -> QuotaInfo | None:
    """Return what one person may hold over all Memberships; None: it binds nowhere.

    It does not where their quotas together are no more.

    Args:
        known: what counts for this Membership, read before.
    """
    most = policy.person_quota_gpu_seconds
    own: dict[int, int | None] = dict(_quotas(user=membership.user_id))
    together = sum(
        policy.quota_gpu_seconds if quota is None else quota for quota in own.values()
    )
    if together <= most:
        return None
    others = [pk for pk in own if pk != membership.pk]
    found = (
        []
        if not others
        else spends_of(
            others, low, high, ignoring=ignoring, ignoring_late=ignoring_late
        )
    )
    return QuotaInfo(
        account=sentence("All your accounts"),
        quota_gpu_seconds=most,
        spends=(*extra, *known, *(spend for _, _, spend in found)),
        own=False,
        person=True,
    )


def _quotas(*, user: int) -> QuerySet[Membership, Any]:
    rows = Membership.objects.filter(user_id=user).order_by()
    return rows.values_list("pk", "quota_gpu_seconds")

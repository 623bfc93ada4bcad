"""What a decision looks at: the policy, the Gpus, who holds them, the quotas."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet, Sum

from reservations.models import (
    Account,
    Allocation,
    LateReturn,
    Membership,
    Reservation,
    SitePolicy,
)
from reservations.rules.booking_rights import Right, right_of
from reservations.rules.calendar import BusySpan, Calendar, CalendarGpu, FlexInfo
from reservations.rules.closed_time import closed_spans
from reservations.rules.fairness.early_returns import EarlyReturns
from reservations.rules.fairness.no_shows import Strike
from reservations.rules.fairness.quota import PERMILLE, QuotaInfo, Spend
from reservations.rules.gaps import is_gap
from reservations.rules.lifecycle import Kind
from reservations.rules.overstay_terms import occupied_until
from reservations.rules.policy import Policy
from reservations.rules.request import Snapshot
from reservations.rules.window import WEEK_SECONDS, Window, instant, unix
from reservations.store.holdings import own_holdings
from reservations.store.pool_rows import (
    barred_pools,
    closures_between,
    pool_quota_infos,
)
from reservations.store.preemptible import Displacer, plans_between, takeable
from reservations.store.quota_use import person_quota, spends_of

WEEK = timedelta(seconds=WEEK_SECONDS)
PATH_UP = "account__parent"
"""For select_related: deeper trees cost a query more a level."""


def site_policy() -> Policy:
    """Return the site's rules as they are now."""
    return SitePolicy.current().to_policy()


def calendar_of(
    gpus: Sequence[CalendarGpu],
    start: datetime,
    end: datetime,
    *,
    ignoring: int | None = None,
    names: bool = False,
    taker: Displacer | None = None,
    asking: Collection[int] = (),
    leave_at: datetime | None = None,
) -> Calendar:
    """Return who holds these Gpus between two instants, and when they are closed.

    Args:
        ignoring: primary key of a Reservation that is about to change.
        names: whether the reader may see who.
        taker: whose request may displace; None: nothing can be taken.
        asking: Accounts on the path of who asks: their teaching slots are open.
        leave_at: when who stays on past the end is gone, if claimed now; the
            taker knows it; None: they stand in the way to the end, and so do gaps
            that are held.
    """
    rows = _held(
        gpus=[gpu.pk for gpu in gpus], start=start, end=end, ignoring=ignoring or 0
    )
    if leave_at is None and taker is not None:
        leave_at = taker.leave_at
    flex: dict[int, FlexInfo] = {}
    if taker is not None:
        pks = {pk for *_, pk, kind, _booked in rows if kind == Kind.FLEX}
        flex = takeable(pks, taker, names=names) if pks else {}
    paused = {pk: one.paused_until for pk, one in flex.items()}
    busy = [
        BusySpan(
            gpu,
            unix(begin),
            unix(occupied_until(booked, over, leave_at=leave_at)),
            (shown or login) if names else "",
            None if paused.get(pk) else flex.get(pk),
            paused_until=paused.get(pk),
        )
        for gpu, begin, over, shown, login, pk, _kind, booked in rows
        # Who asks for Gpus gets those that only a gap's Job is on.
        if leave_at is None or not is_gap(begin, booked)
    ]
    busy += _closed(gpus, start, end, busy, asking)
    plans = plans_between(start, end, taker) if taker is not None else ()
    gaps = {row[0]: unix(row[2]) for row in rows if is_gap(row[1], row[-1])}
    return Calendar(gpus, busy, plans, gaps if leave_at is not None else None)


def _held(
    *, gpus: Collection[int], start: datetime, end: datetime, ignoring: int
) -> QuerySet[Allocation, Any]:
    rows = Allocation.objects.filter(
        gpu_id__in=gpus, live=True, start__lt=end, end__gt=start
    )
    if ignoring:
        rows = rows.exclude(reservation_id=ignoring)
    return rows.order_by().values_list(
        "gpu_id",
        "start",
        "end",
        "reservation__user__display_name",
        "reservation__user__username",
        "reservation_id",
        "reservation__kind",
        "reservation__booked_end",
    )


def _closed(
    gpus: Sequence[CalendarGpu],
    start: datetime,
    end: datetime,
    busy: Sequence[BusySpan],
    asking: Collection[int],
) -> list[BusySpan]:
    """Return the closed spans beside what somebody holds."""
    closures = closures_between(start, end)
    if not closures:
        return []
    held: dict[int, list[Window]] = {}
    for one in busy:
        window = Window(instant(one.start), instant(one.end))
        held.setdefault(one.gpu_pk, []).append(window)
    return closed_spans(closures, gpus, held, asking=asking)


def account_path(membership: Membership) -> list[Account]:
    """Return the Accounts from a Membership's own up to the root."""
    path = [membership.account]
    while (parent := path[-1].parent) is not None:
        path.append(parent)
    return path


def load_membership(pk: int) -> Membership | None:
    """Return a Membership with its User and the Accounts above, in one query."""
    rows = Membership.objects.select_related("user", PATH_UP)
    return rows.filter(pk=pk).first()


def quota_infos(
    membership: Membership,
    path: Iterable[Account],
    start: datetime,
    end: datetime,
    *,
    policy: Policy,
    ignoring: int | None = None,
    ignoring_late: int | None = None,
    extra: Sequence[Spend] = (),
    pools: Collection[int] | None = (),
) -> tuple[QuotaInfo, ...]:
    """Return the quotas that bind a Membership, with what counts near a span.

    An Account without a quota of its own has the sum of its members', which
    holds wherever each of theirs does: it is not looked at.

    Args:
        ignoring: a Reservation that is about to change.
        ignoring_late: a Reservation whose late hours are about to be held again.
        extra: what else counts, such as hours a change would give back late.
        pools: whose own quotas are asked for too; None: every Pool's.
    """
    path = tuple(path)
    limited = [account for account in path if account.quota_gpu_seconds is not None]
    below = accounts_below(limited)
    rows = _spend_rows(
        membership,
        below.values(),
        start - WEEK,
        end + WEEK,
        ignoring=ignoring,
        ignoring_late=ignoring_late,
    )
    quota = membership.quota_gpu_seconds
    infos = [
        QuotaInfo(
            account=str(membership.account),
            quota_gpu_seconds=policy.quota_gpu_seconds if quota is None else quota,
            spends=(*extra, *(spend for pk, _, spend in rows if pk == membership.pk)),
        ),
        *(_group_quota(one, below[one.pk], rows, extra) for one in limited),
    ]
    if pools is None or pools:
        infos += pool_quota_infos(
            membership,
            path,
            start - WEEK,
            end + WEEK,
            pools=pools,
            ignoring=ignoring,
            ignoring_late=ignoring_late,
            extra=extra,
        )
    person = person_quota(
        membership,
        start - WEEK,
        end + WEEK,
        policy=policy,
        ignoring=ignoring,
        ignoring_late=ignoring_late,
        extra=extra,
        known=[spend for pk, _, spend in rows if pk == membership.pk],
    )
    return (*infos, person) if person is not None else tuple(infos)


def _group_quota(
    account: Account,
    inside: Collection[int],
    rows: Sequence[tuple[int, int, Spend]],
    extra: Sequence[Spend],
) -> QuotaInfo:
    return QuotaInfo(
        account=str(account),
        quota_gpu_seconds=account.quota_gpu_seconds or 0,
        spends=(*extra, *(spend for _, pk, spend in rows if pk in inside)),
        own=False,
    )


def members_below(account_pks: Sequence[int]) -> dict[int, list[int]]:
    """Return, for each Account, the Memberships in it and below it."""
    below = accounts_below(Account.objects.filter(pk__in=account_pks))
    rows = Membership.objects.order_by().values_list("pk", "account_id")
    members = list(rows)
    return {
        pk: [member for member, account in members if account in inside]
        for pk, inside in below.items()
    }


def accounts_below(accounts: Iterable[Account]) -> dict[int, frozenset[int]]:
    """Return, for each Account, itself and every Account below it."""
    found: dict[int, set[int]] = {account.pk: set() for account in accounts}
    if not found:
        return {}
    parents = dict(Account.objects.order_by().values_list("pk", "parent_id"))
    for pk in parents:
        above: int | None = pk
        while above is not None:
            if above in found:
                found[above].add(pk)
            above = parents[above]
    return {pk: frozenset(inside) for pk, inside in found.items()}


def _spend_rows(
    membership: Membership,
    groups: Iterable[frozenset[int]],
    low: datetime,
    high: datetime,
    *,
    ignoring: int | None,
    ignoring_late: int | None,
) -> list[tuple[int, int, Spend]]:
    """Return (Membership, Account, firm cost) of one Membership and of groups."""
    wide = frozenset[int]().union(*groups)
    # Without a limited group the Account is nobody's concern: a join less.
    account = "membership__account_id" if wide else "membership_id"
    members = [membership.pk]
    if wide:
        inside = Membership.objects.filter(account_id__in=wide).order_by()
        members = list(inside.values_list("pk", flat=True))
    return spends_of(
        members,
        low,
        high,
        account=account,
        ignoring=ignoring,
        ignoring_late=ignoring_late,
    )


def request_snapshot(
    *,
    membership: Membership,
    path: Sequence[Account],
    gpus: Sequence[CalendarGpu],
    start: datetime,
    end: datetime,
    policy: Policy,
    names: bool,
    ignoring: int | None = None,
    ignoring_late: int | None = None,
    extra: Sequence[Spend] = (),
    taker: Displacer | None = None,
    strike: Strike | None = None,
    returns: EarlyReturns | None = None,
    leave_at: datetime | None = None,
) -> Snapshot:
    """Return all that one request is judged by; see ``quota_infos``.

    The tree is read only where flex is in the way: by whoever judges.
    """
    asking = {account.pk for account in path}
    return Snapshot(
        policy=policy,
        membership_pk=membership.pk,
        calendar=calendar_of(
            gpus,
            start,
            end,
            ignoring=ignoring,
            names=names,
            taker=taker,
            asking=asking,
            leave_at=leave_at,
        ),
        strike=strike,
        returns=returns,
        barred=barred_pools(gpus, asking),
        right=right_to_book(membership, path),
        own=own_holdings(membership.user_id, ignoring=ignoring),
        quotas=quota_infos(
            membership,
            path,
            start,
            end,
            policy=policy,
            ignoring=ignoring,
            ignoring_late=ignoring_late,
            extra=extra,
            pools={gpu.pool_pk for gpu in gpus if gpu.limited},
        ),
    )


def right_to_book(membership: Membership, path: Iterable[Account]) -> Right | None:
    """Return until when a Membership may book; None: without an end."""
    ends = [membership.expires_at, *(account.ends_at for account in path)]
    return right_of(str(membership.account), ends)


def pending_late_gpu_seconds() -> dict[int, int]:
    """Return, by Membership, what hours given back late may still cost."""
    owed: dict[tuple[int, int], int] = {}
    rows = (
        LateReturn.objects.filter(charged_at=None)
        .order_by()
        .values_list(
            "membership_id", "reservation_id", "start", "end", "weight", "permille"
        )
    )
    for membership, row, start, end, weight, part in rows:
        more = (unix(end) - unix(start)) * weight * part
        owed[membership, row] = owed.get((membership, row), 0) + more
    found: dict[int, int] = {}
    for (membership, _), thousandths in owed.items():
        # Rounded as it will be charged: once for each Reservation.
        found[membership] = found.get(membership, 0) + thousandths // PERMILLE
    return found


def committed_gpu_seconds() -> dict[int, int]:
    """Return, by Membership, the cost of what is booked or running."""
    rows = (
        Reservation.objects.live()
        .order_by()
        .values("membership_id")
        .annotate(cost=Sum("cost_gpu_seconds"))
    )
    return {row["membership_id"]: row["cost"] for row in rows}

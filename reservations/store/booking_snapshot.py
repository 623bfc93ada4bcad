"""The database facts of a decision: policy, Gpus, holders, quotas."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from reservations.models import (
    Account,
    Membership,
)
from reservations.rules.booking_rights import Right
from reservations.rules.calendar import BusySpan, Calendar, CalendarGpu, FlexInfo
from reservations.rules.closed_time import closed_spans
from reservations.rules.fairness.early_returns import EarlyReturns
from reservations.rules.fairness.no_shows import Strike
from reservations.rules.fairness.preemption import Displacer
from reservations.rules.fairness.quota import QuotaInfo, Spend
from reservations.rules.lifecycle import Kind
from reservations.rules.overstay_terms import is_gap, occupied_until
from reservations.rules.policy import Policy
from reservations.rules.request import Snapshot
from reservations.rules.window import WEEK_SECONDS, Window, instant, unix
from reservations.store.account_tree import accounts_below
from reservations.store.booking_facts import (
    closures_between,
    held_between,
    own_holdings,
    person_quota,
    plans_between,
    spends_of,
)
from reservations.store.engine_busy import engine_busy
from reservations.store.gpu_rows import barred_pools
from reservations.store.pool_quotas import pool_quota_infos
from reservations.store.preemptible import takeable_flex
from reservations.store.usage import fair_tree, usage_by_membership

WEEK = timedelta(seconds=WEEK_SECONDS)
PATH_UP = "account__parent"
"""For select_related: deeper trees cost one more query per level."""


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
    searching: bool = False,
) -> Calendar:
    """Return the held and the closed time of these Gpus between two instants.

    Args:
        ignoring: primary key of the Reservation to change.
        names: whether the reader may see the holders' names.
        taker: the requesting User, who may displace flex. None: nothing is displaced.
        asking: Accounts on the path of the request. Their teaching slots are open.
        leave_at: the end of overstays that the taker claims now. None: overstays and
            held gaps block until their end.
        searching: whether Gpus are to be found. Then the time counts as held in which
            another engine does not give out its Gpus. A booking asks it.
    """
    rows = held_between([gpu.pk for gpu in gpus], start, end, ignoring=ignoring)
    if leave_at is None and taker is not None:
        leave_at = taker.leave_at
    flex: dict[int, FlexInfo] = {}
    if taker is not None:
        pks = {one.reservation_pk for one in rows if one.kind == Kind.FLEX}
        flex = takeable_flex(pks, taker, names=names) if pks else {}
    paused = {pk: one.paused_until for pk, one in flex.items()}
    busy = [
        BusySpan(
            one.gpu_pk,
            unix(one.start),
            unix(occupied_until(one.booked_end, one.end, leave_at=leave_at)),
            one.user if names else "",
            None if paused.get(one.reservation_pk) else flex.get(one.reservation_pk),
            paused_until=paused.get(one.reservation_pk),
        )
        for one in rows
        # A request may take Gpus that only a Job in a gap uses.
        if leave_at is None or not is_gap(one.start, one.booked_end)
    ]
    if searching:
        busy += engine_busy(gpus, _windows(busy), start, end)
    busy += _closed(gpus, start, end, busy, asking)
    plans = plans_between(start, end, taker) if taker is not None else ()
    gaps = {
        one.gpu_pk: unix(one.end) for one in rows if is_gap(one.start, one.booked_end)
    }
    return Calendar(gpus, busy, plans, gaps if leave_at is not None else None)


def _closed(
    gpus: Sequence[CalendarGpu],
    start: datetime,
    end: datetime,
    busy: Sequence[BusySpan],
    asking: Collection[int],
) -> list[BusySpan]:
    """Return the closed spans outside the held time."""
    closures = closures_between(start, end)
    if not closures:
        return []
    return closed_spans(closures, gpus, _windows(busy), asking=asking)


def _windows(busy: Iterable[BusySpan]) -> dict[int, list[Window]]:
    found: dict[int, list[Window]] = {}
    for one in busy:
        window = Window(instant(one.start), instant(one.end))
        found.setdefault(one.gpu_pk, []).append(window)
    return found


def account_path(membership: Membership) -> list[Account]:
    """Return the Accounts from a Membership's up to the root."""
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
    """Return the quotas that apply to a Membership, with the spends near a span.

    An Account without its own quota has the sum of its members' quotas. It is not read,
    because it is kept whenever theirs are.

    Args:
        ignoring: a Reservation that is about to change.
        ignoring_late: a Reservation whose late hours are about to be held again.
        extra: further spends, such as hours that a change would return late.
        pools: the Pools whose quotas are read too. None: every Pool.
    """
    path = tuple(path)
    limited = [account for account in path if account.quota_gpu_seconds is not None]
    below = accounts_below([account.pk for account in limited]) if limited else {}
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
    members = [membership.pk]
    if wide:
        inside = Membership.objects.filter(account_id__in=wide).order_by()
        members = list(inside.values_list("pk", flat=True))
    return spends_of(members, low, high, ignoring=ignoring, ignoring_late=ignoring_late)


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
    """Return the facts that decide one request. See ``quota_infos``.

    The caller reads the tree only if flex is in the way.
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
    """Return until when a Membership may book. None: without an end."""
    ends = [membership.expires_at, *(account.ends_at for account in path)]
    found = [at for at in ends if at is not None]
    return Right(str(membership.account), min(found)) if found else None


def with_tree(snapshot: Snapshot, *, now: datetime) -> Snapshot:
    """Return the Snapshot, with the tree if flex is in the way."""
    owners = snapshot.calendar.flex_owners()
    if not owners:
        return snapshot
    also = owners | {snapshot.membership_pk}
    usage = usage_by_membership(now, snapshot.policy)
    tree = fair_tree(usage, now, snapshot.policy, also=also)
    return replace(snapshot, tree=tree)

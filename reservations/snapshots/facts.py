"""What a decision looks at: the policy, the Gpus, who holds them, the quotas."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from django.db.models import Sum

from reservations.domain.calendar import Busy, Calendar, CalendarGpu
from reservations.domain.decision import Holding, Snapshot
from reservations.domain.lifecycle import Kind, State
from reservations.domain.policy import Policy
from reservations.domain.quota import PERMILLE, QuotaInfo, Spend
from reservations.domain.window import WEEK_SECONDS, Window, unix
from reservations.models import (
    Account,
    Allocation,
    LateReturn,
    Membership,
    Reservation,
    SitePolicy,
)
from telemetry.models import Gpu, GpuQuerySet

WEEK = timedelta(seconds=WEEK_SECONDS)
_ABOVE = "account__parent__parent__parent"


def site_policy() -> Policy:
    """Return the site's rules as they are now."""
    return SitePolicy.current().to_policy()


def calendar_gpus(
    gpus: "GpuQuerySet | Iterable[Gpu] | None" = None,
) -> list[CalendarGpu]:
    """Return Gpus (default: all that are shown) as the calendar knows them."""
    if gpus is None:
        gpus = Gpu.objects.shown()
    if isinstance(gpus, GpuQuerySet):
        gpus = gpus.select_related("node", "pool")
    return [
        CalendarGpu(
            pk=gpu.pk,
            node=gpu.node.name,
            index=gpu.index,
            gpu_class=gpu.pool.gpu_class,
            memory_total_bytes=gpu.memory_total_bytes,
            weight=gpu.pool.weight,
            bookable=is_bookable(gpu),
            name=gpu.name,
        )
        for gpu in gpus
    ]


def is_bookable(gpu: Gpu) -> bool:
    """Say the same of one loaded Gpu as ``Gpu.objects.bookable()`` of rows."""
    out = gpu.lost or gpu.maintenance or gpu.mig or gpu.retired
    return gpu.present and not out and not gpu.node.maintenance


def calendar_of(
    gpus: Sequence[CalendarGpu],
    start: datetime,
    end: datetime,
    *,
    ignoring: int | None = None,
    names: bool = False,
) -> Calendar:
    """Return who holds these Gpus between two instants.

    Args:
        ignoring: primary key of a Reservation that is about to change.
        names: whether the reader may see who.
    """
    rows = (
        Allocation.objects.filter(
            gpu_id__in=[gpu.pk for gpu in gpus],
            live=True,
            start__lt=end,
            end__gt=start,
        )
        .exclude(reservation_id=ignoring or 0)
        .order_by()
        .values_list(
            "gpu_id",
            "start",
            "end",
            "reservation__user__display_name",
            "reservation__user__username",
        )
    )
    return Calendar(
        gpus,
        (
            Busy(gpu, unix(begin), unix(over), (shown or login) if names else "")
            for gpu, begin, over, shown, login in rows
        ),
    )


def own_holdings(user_pk: int, *, ignoring: int | None = None) -> tuple[Holding, ...]:
    """Return a User's live Reservations, over all Memberships."""
    rows = (
        Allocation.objects.filter(
            reservation__user_id=user_pk, reservation__state__in=State.live()
        )
        .exclude(reservation_id=ignoring or 0)
        .order_by("reservation_id")
        .values_list(
            "reservation_id",
            "reservation__start",
            "reservation__end",
            "reservation__kind",
            "gpu_id",
        )
    )
    found: dict[int, tuple[Window, Kind, set[int]]] = {}
    for pk, start, end, kind, gpu in rows:
        if pk not in found:
            found[pk] = (Window(start, end), Kind(kind), set())
        found[pk][2].add(gpu)
    return tuple(
        Holding(pk, window, frozenset(gpus), kind)
        for pk, (window, kind, gpus) in found.items()
    )


def account_path(membership: Membership) -> list[Account]:
    """Return the Accounts from a Membership's own up to the root."""
    path = [membership.account]
    while (parent := path[-1].parent) is not None:
        path.append(parent)
    return path


def load_membership(pk: int) -> Membership | None:
    """Return a Membership with its User and the Accounts above, in one query."""
    rows = Membership.objects.select_related("user", _ABOVE)
    return rows.filter(pk=pk).first()


def quota_infos(
    membership: Membership,
    path: Iterable[Account],
    start: datetime,
    end: datetime,
    *,
    policy: Policy,
    ignoring: int | None = None,
) -> tuple[QuotaInfo, ...]:
    """Return the quotas that bind a Membership, with what counts near a span.

    An Account without a quota of its own has the sum of its members', which
    holds wherever each of theirs does: it is not looked at.
    """
    quota = membership.quota_gpu_seconds
    infos = [
        QuotaInfo(
            account=str(membership.account),
            quota_gpu_seconds=policy.quota_gpu_seconds if quota is None else quota,
            spends=spends([membership.pk], start, end, ignoring=ignoring),
        )
    ]
    limited = [account for account in path if account.quota_gpu_seconds is not None]
    if limited:
        members = members_below([account.pk for account in limited])
        for account in limited:
            infos.append(
                QuotaInfo(
                    account=str(account),
                    quota_gpu_seconds=account.quota_gpu_seconds or 0,
                    spends=spends(members[account.pk], start, end, ignoring=ignoring),
                    own=False,
                )
            )
    return tuple(infos)


def members_below(account_pks: Sequence[int]) -> dict[int, list[int]]:
    """Return, for each Account, the Memberships in it and below it."""
    parents = dict(Account.objects.order_by().values_list("pk", "parent_id"))
    found: dict[int, list[int]] = {pk: [] for pk in account_pks}
    for pk, account in Membership.objects.order_by().values_list("pk", "account_id"):
        above: int | None = account
        while above is not None:
            if above in found:
                found[above].append(pk)
            above = parents[above]
    return found


def spends(
    membership_pks: Sequence[int],
    start: datetime,
    end: datetime,
    *,
    ignoring: int | None = None,
) -> tuple[Spend, ...]:
    """Return the firm cost of Memberships within 7 days of a span."""
    low, high = start - WEEK, end + WEEK
    held = (
        Reservation.objects.spending()
        .near(low, high)
        .filter(membership_id__in=membership_pks)
        .exclude(pk=ignoring or 0)
        .order_by()
        .values_list("start", "end", "cost_gpu_seconds")
    )
    late = (
        LateReturn.objects.filter(
            reservation__membership_id__in=membership_pks,
            reservation__kind=Kind.FIRM,
            start__lt=high,
            end__gt=low,
        )
        .order_by()
        .values_list("start", "end", "weight", "permille")
    )
    found = []
    for begin, over, cost in held:
        first, last = unix(begin), unix(over)
        if last > first:
            found.append(Spend(first, last, cost * PERMILLE // (last - first)))
    found += [Spend(unix(a), unix(b), weight * part) for a, b, weight, part in late]
    return tuple(found)


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
) -> Snapshot:
    """Return all that one request is judged by."""
    return Snapshot(
        policy=policy,
        calendar=calendar_of(gpus, start, end, ignoring=ignoring, names=names),
        own=own_holdings(membership.user_id, ignoring=ignoring),
        quotas=quota_infos(
            membership, path, start, end, policy=policy, ignoring=ignoring
        ),
    )


def pending_late_gpu_seconds() -> dict[int, int]:
    """Return, by Membership, what hours given back late may still cost."""
    found: dict[int, int] = {}
    rows = (
        LateReturn.objects.filter(charged_at=None)
        .order_by()
        .values_list("reservation__membership_id", "start", "end", "weight", "permille")
    )
    for membership, start, end, weight, part in rows:
        cost = (unix(end) - unix(start)) * weight * part // PERMILLE
        found[membership] = found.get(membership, 0) + cost
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

"""The site's own past as a trace of jobs, in the columns of ``manage.py replay``."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from reservations.models import Account, Allocation, Membership, PoolQuota
from reservations.reports.replay.site_rules import AccountRule, MemberRule, SiteTree
from reservations.reports.replay.trace import TraceJob
from reservations.rules.lifecycle import State
from reservations.rules.window import unix
from telemetry.models import Gpu, Pool

CountedFrom = Literal["asked", "start"]
MOST_JOBS = 50_000
_FIELDS = (
    "reservation_id",
    "reservation__user__username",
    "reservation__membership__account__name",
    "reservation__created_at",
    "reservation__start",
    "reservation__end",
    "reservation__booked_end",
    "reservation__state",
)


@dataclass(frozen=True, slots=True)
class SiteTrace:
    """Jobs of the site's past, and the cluster on which they were booked."""

    jobs: tuple[TraceJob, ...]
    gpus: int
    weight: int
    """Of one Gpu. An average if classes differ, rounded."""
    left_out: int
    """Bookings beyond ``MOST_JOBS``."""


def site_trace(
    start: datetime, end: datetime, *, counted_from: CountedFrom, pool: Pool | None
) -> SiteTrace:
    """Read the bookings that were to begin in [start, end), except cancelled ones.

    Displaced and refunded bookings count for their booked length.

    Args:
        counted_from: a job is submitted at its request, or at its planned start.
        pool: only these Gpus. None: all.
    """
    gpus = Gpu.objects.filter(retired=False)
    rows = Allocation.objects.filter(start__gte=start, start__lt=end)
    if pool is not None:
        gpus = gpus.filter(pool=pool)
        rows = rows.filter(gpu__pool=pool)
    weights = list(gpus.values_list("pool__weight", flat=True))
    found = list(
        rows.exclude(reservation__state=State.CANCELLED)
        .order_by()
        .values_list(*_FIELDS)
    )
    widths = Counter(row[0] for row in found)
    one_each = {row[0]: row for row in found}
    jobs = [_job(row, widths[pk], start, counted_from) for pk, row in one_each.items()]
    jobs.sort(key=lambda job: (job.submit_s, job.number))
    return SiteTrace(
        jobs=tuple(jobs[:MOST_JOBS]),
        # Retired Gpus existed for the bookings on them.
        gpus=max([len(weights), *widths.values()]),
        weight=max(1, round(sum(weights) / len(weights))) if weights else 1,
        left_out=max(0, len(jobs) - MOST_JOBS),
    )


def _job(
    row: Sequence[Any], width: int, start: datetime, counted_from: CountedFrom
) -> TraceJob:
    pk, user, group, asked, begun, over, booked, state = row
    req_s = max(1, unix(booked) - unix(begun))
    held = booked if state in (State.DISPLACED, State.REFUNDED) else over
    submitted = begun if counted_from == "start" else asked
    return TraceJob(
        number=pk,
        job_id=str(pk),
        user=user,
        group=group,
        submit_s=max(0, unix(submitted) - unix(start)),
        gpus=width,
        duration_s=min(req_s, max(0, unix(held) - unix(begun))),
        req_s=req_s,
    )


def site_tree(pool: Pool | None) -> SiteTree:
    """Read the site's present shares and quotas by name.

    Args:
        pool: includes its own quotas. None: a trace of all Pools does not distinguish
            them.
    """
    found = PoolQuota.objects.filter(pool=pool) if pool is not None else ()
    own = {one.membership_id: one.quota_gpu_seconds for one in found}
    of_account = {one.account_id: one.quota_gpu_seconds for one in found}
    accounts = Account.objects.order_by("pk").values_list(
        "pk", "name", "parent__name", "shares", "quota_gpu_seconds"
    )
    members = Membership.objects.order_by("pk").values_list(
        "pk", "account__name", "user__username", "shares", "quota_gpu_seconds"
    )
    return SiteTree(
        tuple(
            AccountRule(name, parent, shares, quota, of_account.get(pk))
            for pk, name, parent, shares, quota in accounts
        ),
        tuple(
            MemberRule(account, user, shares, quota, own.get(pk))
            for pk, account, user, shares, quota in members
        ),
    )

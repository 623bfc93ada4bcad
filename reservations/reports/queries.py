"""Reports over months: rows by month, group, person, Gpu or class, in few queries."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Literal

from django.db.models import F, Min, Sum
from django.db.models.functions import TruncMonth

from reservations.models import (
    Account,
    Membership,
    MonthUse,
    RefusedDemand,
    RolledMonth,
    User,
)
from reservations.reports.rules import ReportSums, next_month
from telemetry.models import Gpu, Pool
from telemetry.protocol.sentences import sentence

By = Literal["month", "group", "user", "gpu", "class"]
COLUMN: dict[By, str] = {
    "month": "month",
    "group": "membership__account_id",
    "user": "membership__user_id",
    "gpu": "gpu_id",
    # Joined in Python: for a year of many Gpus, a join would take two seconds.
    "class": "gpu_id",
}
REFUSED_COLUMN: dict[By, str] = {
    "month": "month",
    "group": "membership__account_id",
    "user": "membership__user_id",
    "class": "pool_id",
}
"""Demand is for a class. Which Gpu it would have used is unknown."""
SITE = sentence("the site")
MOST_PEOPLE = 2000


@dataclass(frozen=True, slots=True)
class ReportFilter:
    """The months and the scope of a report. None: no limit."""

    first: date
    last: date
    """First days of the first and the last month, both included."""
    account_pks: frozenset[int] | None = None
    user_pk: int | None = None
    pool_pk: int | None = None


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One line of a report: its subject, sums and refusals."""

    key: date | int | None
    name: str
    sums: ReportSums
    refused_requests: int = 0
    refused_gpu_seconds: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """All lines, their sum, and how recent it is."""

    by: By
    rows: tuple[ReportRow, ...]
    total: ReportRow
    rolled_at: datetime | None
    """The time of the oldest month's sums. None: no month is summed yet."""


def report(asked: ReportFilter, by: By) -> Report:
    """Sum the months by one dimension, in at most five queries."""
    sums = _sums_by(asked, by)
    refused = _refused(asked, by)
    names = _names(by, {key for key in (*sums, *refused) if key is not None})
    rows = tuple(
        ReportRow(
            key,
            SITE if key is None else names.get(key, f"#{key}"),
            sums.get(key, ReportSums()),
            *refused.get(key, (0, 0)),
        )
        for key in {**sums, **dict.fromkeys(refused)}
    )
    return Report(by, rows, _total(rows), _rolled_at(asked))


def _total(rows: tuple[ReportRow, ...]) -> ReportRow:
    total = ReportSums()
    for row in rows:
        total += row.sums
    return ReportRow(
        None,
        sentence("Together"),
        total,
        sum(row.refused_requests for row in rows),
        sum(row.refused_gpu_seconds for row in rows),
    )


def _sums_by(asked: ReportFilter, by: By) -> dict[Any, ReportSums]:
    rows = MonthUse.objects.filter(month__gte=asked.first, month__lte=asked.last)
    rows = rows.filter(**_scope_filters(asked, pool="gpu__pool_id"))
    fields = list(ReportSums.__dataclass_fields__)
    found = (
        rows.order_by()
        .values(key=F(COLUMN[by]))
        .annotate(**{f"sum_{name}": Sum(name) for name in fields})
        .values_list("key", *(f"sum_{name}" for name in fields))
    )
    if by != "class":
        return {key: ReportSums(*values) for key, *values in found}
    pools = dict(Gpu.objects.order_by().values_list("pk", "pool_id"))
    folded: dict[Any, ReportSums] = defaultdict(ReportSums)
    for gpu, *values in found:
        folded[pools[gpu]] += ReportSums(*values)
    return dict(folded)


def _refused(asked: ReportFilter, by: By) -> dict[Any, tuple[int, int]]:
    if by not in REFUSED_COLUMN:
        return {}
    rows = RefusedDemand.objects.filter(
        day__gte=asked.first, day__lt=next_month(asked.last)
    ).filter(**_scope_filters(asked, pool="pool_id"))
    if by == "month":
        rows = rows.annotate(month=TruncMonth("day"))
    found = (
        rows.order_by()
        .values(key=F(REFUSED_COLUMN[by]))
        .annotate(asked=Sum("requests"), seconds=Sum("gpu_seconds"))
        .values_list("key", "asked", "seconds")
    )
    return {key: (requests, seconds) for key, requests, seconds in found}


def _scope_filters(asked: ReportFilter, *, pool: str) -> dict[str, Any]:
    """Return the same conditions for both tables. A head's report has only their
    groups.
    """
    found: dict[str, Any] = {}
    if asked.account_pks is not None:
        found["membership__account_id__in"] = asked.account_pks
    if asked.user_pk is not None:
        found["membership__user_id"] = asked.user_pk
    if asked.pool_pk is not None:
        found[pool] = asked.pool_pk
    return found


def _names(by: By, keys: set[Any]) -> Mapping[Any, str]:
    if by == "month":
        return {key: f"{key:%B %Y}" for key in keys}
    if by == "group":
        return {a.pk: str(a) for a in Account.objects.filter(pk__in=keys)}
    if by == "user":
        return {u.pk: str(u) for u in User.objects.filter(pk__in=keys)}
    if by == "gpu":
        gpus = Gpu.objects.filter(pk__in=keys).select_related("node")
        return {gpu.pk: str(gpu) for gpu in gpus}
    return {pool.pk: str(pool) for pool in Pool.objects.filter(pk__in=keys)}


def _rolled_at(asked: ReportFilter) -> datetime | None:
    months = RolledMonth.objects.filter(month__gte=asked.first, month__lte=asked.last)
    # A final month needs no update.
    open_ = months.filter(final=False).aggregate(at=Min("rolled_at"))["at"]
    return open_ or months.aggregate(at=Min("rolled_at"))["at"]


def first_month() -> date | None:
    """Return the first month with sums, or None."""
    return RolledMonth.objects.aggregate(first=Min("month"))["first"]


def people_of(account_pks: frozenset[int] | None) -> list[tuple[int, str]]:
    """Return the users by which a report can be filtered, as (User, name)."""
    members = Membership.objects.order_by()
    if account_pks is not None:
        members = members.filter(account_id__in=account_pks)
    users = User.objects.filter(pk__in=members.values("user_id"))
    found = users.only("display_name", "username")[:MOST_PEOPLE]
    return sorted(((user.pk, str(user)) for user in found), key=_lower)


def _lower(item: tuple[int, str]) -> str:
    return item[1].lower()

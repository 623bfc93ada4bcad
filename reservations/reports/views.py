"""Reports of booked, held, used, returned and refused time; table, chart, CSV.

Operators see the whole site, heads their groups, through the same snapshot. The address
has all parameters.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.http import require_safe

from reservations.models import Account
from reservations.reports.queries import (
    REFUSED_COLUMN,
    By,
    Report,
    ReportFilter,
    ReportRow,
    first_month,
    people_of,
    report,
)
from reservations.reports.rules import month_of, months_back
from reservations.store.access import operator_required, reader, steered_accounts
from reservations.store.account_tree import subtree
from telemetry.models import Pool
from telemetry.protocol.sentences import sentence
from telemetry.protocol.units import HOUR_SECONDS
from telemetry.web.csv_answer import csv_answer
from telemetry.web.plain_forms import PlainForm
from telemetry.web.query_filters import QueryFilters, read_filters

PAGE_ROWS = 50
BARS = 12
"""Rows of the chart."""
WIDTH = 1000
MONTHS = 12
BY_WORDS: dict[By, str] = {
    "month": sentence("Month"),
    "group": sentence("Group"),
    "user": sentence("Person"),
    "gpu": sentence("GPU"),
    "class": sentence("GPU class"),
}


@dataclass(frozen=True)
class Column:
    """One column: its name in the address, title, value, and format."""

    name: str
    title: str
    value: Callable[[ReportRow], float | int | None]
    unit: str = "hours"
    """hours, ratio, kwh, count."""
    tip: str = ""


def _hours(name: str) -> Callable[[ReportRow], float]:
    return lambda row: float(getattr(row.sums, name)) / HOUR_SECONDS


COLUMNS = (
    Column(
        "booked",
        sentence("Booked"),
        _hours("booked_gpu_seconds"),
        tip=sentence("GPU-hours booked"),
    ),
    Column(
        "held",
        sentence("Held"),
        _hours("held_gpu_seconds"),
        tip=sentence("GPU-hours really held"),
    ),
    Column(
        "used",
        sentence("Used"),
        _hours("used_gpu_seconds"),
        tip=sentence(
            "Held GPU-hours times their utilization, where there is a reading"
        ),
    ),
    Column(
        "util",
        sentence("Utilization"),
        lambda row: row.sums.used_ratio,
        "ratio",
        tip=sentence("Mean over the held time with a reading"),
    ),
    Column(
        "returned",
        sentence("Given back"),
        _hours("returned_gpu_seconds"),
        tip=sentence("GPU-hours cancelled, released or freed"),
    ),
    Column(
        "refused",
        sentence("Refused"),
        lambda row: row.refused_gpu_seconds / HOUR_SECONDS,
        tip=sentence("GPU-hours of refused bookings, once for each attempt"),
    ),
    Column("bookings", sentence("Bookings"), lambda row: row.sums.bookings, "count"),
    Column("noshows", sentence("No-shows"), lambda row: row.sums.no_shows, "count"),
    Column("energy", sentence("Energy"), lambda row: row.sums.energy_kwh, "kwh"),
    Column(
        "cost",
        sentence("Charged"),
        _hours("cost_gpu_seconds"),
        tip=sentence("Credits charged in the ledger"),
    ),
)
ON_GPUS = {
    "bookings": lambda row: row.sums.gpu_bookings,
    "noshows": lambda row: row.sums.gpu_no_shows,
}
"""Per Gpu: a booking of four Gpus counts for each of them."""


class MonthField(forms.Field):
    """ "2026-11", as `<input type="month">` sends it."""

    def to_python(self, value: Any) -> date | None:
        """Return the first day of the month."""
        if not value:
            return None
        try:
            month = date.fromisoformat(f"{str(value)[:7]}-01")
        except ValueError as error:
            raise forms.ValidationError(
                gettext("not a month such as 2026-11")
            ) from error
        if not 2000 <= month.year <= 2199 or len(str(value)) != 7:
            raise forms.ValidationError(gettext("not a month such as 2026-11"))
        return month


def _choice_field(words: Sequence[str]) -> forms.ChoiceField:
    return forms.ChoiceField(required=False, choices=[(word, word) for word in words])


class ReportForm(PlainForm):
    """The months, dimension, scope and order of a report."""

    since = MonthField(required=False)
    until = MonthField(required=False)
    by = _choice_field(list(BY_WORDS))
    group = forms.IntegerField(required=False, min_value=1, max_value=2**62)
    user = forms.IntegerField(required=False, min_value=1, max_value=2**62)
    gpu_class = forms.IntegerField(required=False, min_value=1, max_value=2**62)
    sort = _choice_field(
        [m + name for name in ("name", *(c.name for c in COLUMNS)) for m in ("", "-")]
    )
    page = forms.IntegerField(required=False, min_value=1, max_value=10**6)
    format = _choice_field(["csv"])


@require_safe
@operator_required
def site(request: HttpRequest) -> HttpResponseBase:
    """Report on the whole site."""
    return _report_response(
        request, read_filters(ReportForm, request.GET), account=None
    )


@require_safe
def group(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Report on a group that the reader heads, with all groups below it."""
    steered = steered_accounts(reader(request))
    account = get_object_or_404(Account, pk=pk, pk__in=steered)
    return _report_response(
        request, read_filters(ReportForm, request.GET), account=account
    )


def _report_response(
    request: HttpRequest, asked: QueryFilters, *, account: Account | None
) -> HttpResponseBase:
    values = asked.values
    by: By = values.get("by") or "month"
    wanted = _filter(values, account)
    found = report(wanted, by)
    columns = columns_of(by)
    sort = values.get("sort") or ("name" if by == "month" else "-booked")
    rows = in_order(found, columns, sort)
    if values.get("format") == "csv":
        rows_of_file = _csv_rows(found, rows, columns)
        return csv_answer(f"report-{found.by}.csv", rows_of_file)
    pages = Paginator(rows, PAGE_ROWS)
    page = pages.get_page(values.get("page") or 1)
    kept = {
        name: str(value)
        for name, value in request.GET.items()
        if value and name in ReportForm.base_fields
    }
    scope = None if account is None else frozenset(subtree(account.pk))
    return render(
        request,
        "reservations/reports/report_site.html"
        if account is None
        else "reservations/reports/report_group.html",
        {
            "tab": "reports",
            "account": account,
            "notices": asked.notices,
            "report": found,
            "asked": wanted,
            "by": by,
            "by_words": BY_WORDS,
            "sort": sort,
            "heads": _heads(by, columns, sort, kept),
            "rows": [(row, cells_of(row, columns)) for row in page],
            "total": cells_of(found.total, columns),
            "page": page,
            "bars": report_bars(found, rows),
            "groups": Account.objects.filter(
                **({} if scope is None else {"pk__in": scope})
            ),
            "people": people_of(scope),
            "classes": Pool.objects.order_by("gpu_class"),
            "values": values,
            "first_month": first_month(),
            "csv_query": urlencode({**_without(kept, "page"), "format": "csv"}),
            "page_query": urlencode(_without(kept, "page", "format")),
            "narrowed": any(kept.get(n) for n in ("group", "user", "gpu_class")),
        },
    )


def _filter(values: dict[str, Any], account: Account | None) -> ReportFilter:
    """Return the filter. A head never sees more than the headed groups."""
    present = month_of(timezone.now(), timezone.get_default_timezone())
    last = values.get("until") or present
    first = values.get("since") or months_back(last, MONTHS - 1)
    pks: frozenset[int] | None = None
    if account is not None:
        pks = frozenset(subtree(account.pk))
    if values.get("group"):
        below = frozenset(subtree(values["group"]))
        pks = below if pks is None else pks & below
    return ReportFilter(
        first=min(first, last),
        last=max(first, last),
        account_pks=pks,
        user_pk=values.get("user"),
        pool_pk=values.get("gpu_class"),
    )


def columns_of(by: By) -> list[Column]:
    """Return the columns that apply to these rows."""
    if by != "gpu":
        return list(COLUMNS)
    return [
        Column(c.name, c.title, ON_GPUS.get(c.name, c.value), c.unit, c.tip)
        for c in COLUMNS
        if c.name != "refused"
    ]


def in_order(found: Report, columns: Sequence[Column], sort: str) -> list[ReportRow]:
    """Return the rows in the requested order. Ties by name, unknown values last."""
    name = sort.removeprefix("-")
    column = next((c for c in columns if c.name == name), None)
    rows = sorted(found.rows, key=lambda row: row.name.lower())
    if found.by == "month":
        rows.sort(key=lambda row: str(row.key))
    if column is None:
        return rows[::-1] if sort.startswith("-") else rows
    known = [row for row in rows if column.value(row) is not None]
    known.sort(key=lambda row: column.value(row) or 0, reverse=sort.startswith("-"))
    return known + [row for row in rows if column.value(row) is None]


def cells_of(
    row: ReportRow, columns: Sequence[Column]
) -> list[tuple[Column, float | int | None]]:
    """Return a row's figures with their columns."""
    return [(column, column.value(row)) for column in columns]


def _heads(
    by: By, columns: Sequence[Column], sort: str, kept: dict[str, str]
) -> list[dict[str, str]]:
    """Return the headers of the table. Each link sorts, or reverses the order."""
    heads = []
    for name, title, tip in [
        ("name", BY_WORDS[by], ""),
        *((c.name, c.title, c.tip) for c in columns),
    ]:
        down = sort == f"-{name}"
        up = sort == name
        first = name if name == "name" else f"-{name}"
        other = {first: f"-{name}" if first == name else name}.get(sort, first)
        heads.append(
            {
                "title": title,
                "tip": tip,
                "num": "" if name == "name" else "num",
                "aria": "descending" if down else "ascending" if up else "",
                "query": urlencode({**_without(kept, "page", "format"), "sort": other}),
            }
        )
    return heads


def _without(kept: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in kept.items() if name not in names}


@dataclass(frozen=True)
class ReportBar:
    """One bar of the chart. Widths in thousandths of the longest."""

    name: str
    booked: int
    held: int
    used: int
    row: ReportRow


def report_bars(found: Report, rows: Sequence[ReportRow]) -> list[ReportBar]:
    """Return the bars: months in order, otherwise those with the most booked time."""
    shown = [row for row in rows if row.sums.booked_gpu_seconds]
    if found.by == "month":
        shown = sorted(shown, key=lambda row: str(row.key))[-BARS:]
    else:
        shown.sort(key=lambda row: -row.sums.booked_gpu_seconds)
        shown = shown[:BARS]
    most = max((row.sums.booked_gpu_seconds for row in shown), default=1)

    def wide(seconds: int) -> int:
        return WIDTH * min(seconds, most) // most

    return [
        ReportBar(
            row.name,
            booked=wide(row.sums.booked_gpu_seconds),
            held=wide(row.sums.held_gpu_seconds),
            used=wide(row.sums.used_gpu_seconds),
            row=row,
        )
        for row in shown
    ]


def _csv_rows(
    found: Report, rows: Sequence[ReportRow], columns: Sequence[Column]
) -> Iterator[list[object]]:
    """Return all rows, with the units of the figures in the header."""
    units = {"hours": "gpu_hours", "ratio": "ratio", "kwh": "kwh", "count": ""}
    yield [
        found.by,
        *("_".join(filter(None, (c.name, units[c.unit]))) for c in columns),
        *(["refused_requests"] if found.by in REFUSED_COLUMN else []),
    ]
    for row in [*rows, found.total]:
        values = (column.value(row) for column in columns)
        cells = [None if value is None else round(value, 4) for value in values]
        refused = [row.refused_requests] if found.by in REFUSED_COLUMN else []
        yield [row.name, *cells, *refused]

"""When the cluster is free: hours of the past weeks, folded into one week.

There are two measures: held (booked, from the calendar) and working (kernels ran, from
the samples). It joins several apps, so it is here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.core.cache import cache
from django.db.models import Count, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext_lazy as lazy
from django.views.decorators.http import require_safe

from telemetry.models import AccountHour, Pool, SampleHour
from telemetry.rules.week_pattern import (
    DAY_NAMES,
    HOUR_SECONDS,
    HOURS,
    HourUse,
    Stretch,
    WeekHour,
    fold,
    stretches,
)
from telemetry.web.csv_answer import csv_answer
from telemetry.web.plain_forms import PlainForm
from telemetry.web.query_filters import read_filters

WEEKS = (4, 8, 26)
STRETCH_HOURS = 4
STRETCHES = 3
LEVELS = 10
KEEP_SECONDS = 600
"""Hours are rolled up once an hour, so a page may be ten minutes behind."""
MEASURES = {"held": lazy("Not booked"), "working": lazy("Not computing")}


class FreeHoursForm(PlainForm):
    """Which Gpus, how many weeks, and which of the two measures."""

    gpu_class = forms.CharField(required=False, max_length=80)
    weeks = forms.TypedChoiceField(
        required=False, coerce=int, choices=[(n, n) for n in WEEKS], empty_value=None
    )
    measure = forms.ChoiceField(required=False, choices=list(MEASURES.items()))
    format = forms.ChoiceField(required=False, choices=[("csv", "csv")])


@dataclass(frozen=True)
class HourCell:
    """One hour of the week, as the page draws it."""

    hour: WeekHour
    level: int | None
    """0 (all in use) to 10 (all free); None: unknown."""
    now: bool


@require_safe
def free_hours(request: HttpRequest) -> HttpResponse:
    """Answer with the heat map and the stretches that are most often free."""
    asked = read_filters(FreeHoursForm, request.GET)
    gpu_class = asked.values.get("gpu_class") or ""
    weeks = asked.values.get("weeks") or WEEKS[0]
    measure = asked.values.get("measure") or "held"
    now = timezone.now()
    week = _week(gpu_class, weeks, measure, now)
    if asked.values.get("format") == "csv":
        return csv_answer("free-hours.csv", _csv_rows(week))
    known = any(hour.free_ratio is not None for hour in week)
    return render(
        request,
        "gpuportal/board/free_hours.html",
        {
            "notices": asked.notices,
            "classes": Pool.objects.filter(gpus__retired=False).distinct(),
            "gpu_class": gpu_class,
            "weeks": weeks,
            "weeks_choices": WEEKS,
            "measure": measure,
            "measures": MEASURES,
            "known": known,
            "days": DAY_NAMES,
            "rows": _rows(week, timezone.localtime(now)),
            "levels": range(LEVELS + 1),
            "freest": _shown(stretches(week, hours=STRETCH_HOURS, most=STRETCHES)),
            "busiest": _shown(
                stretches(week, hours=STRETCH_HOURS, most=STRETCHES, busiest=True)
            ),
        },
    )


def _week(gpu_class: str, weeks: int, measure: str, now: datetime) -> list[WeekHour]:
    """Return the folded week, cached for some minutes for all readers."""
    hour = now.replace(minute=0, second=0, microsecond=0)
    zone = timezone.get_current_timezone()
    pool = Pool.objects.filter(gpu_class=gpu_class).first() if gpu_class else None
    if gpu_class and pool is None:
        return fold([], zone)
    key = f"free-hours:{pool.pk if pool else 0}:{weeks}:{measure}:{hour.timestamp()}"
    found: list[WeekHour] | None = cache.get(key)
    if found is None:
        load = working_hours if measure == "working" else held_hours
        found = fold(load(hour - timedelta(weeks=weeks), hour, pool), zone)
        if any(one.weeks for one in found):
            cache.set(key, found, KEEP_SECONDS)
    return found


def working_hours(start: datetime, end: datetime, pool: Pool | None) -> list[HourUse]:
    """Return, per hour, the samples that were not idle, of all with known
    utilization."""
    rows = _gpu_hours(start, end, pool).annotate(told=Sum("util_n"), idle=Sum("idle_n"))
    return [
        HourUse(int(row["hour_at"].timestamp()), row["told"] - row["idle"], row["told"])
        for row in rows
    ]


def held_hours(start: datetime, end: datetime, pool: Pool | None) -> list[HourUse]:
    """Return, per hour, the held seconds of all seconds of the Gpus."""
    held = AccountHour.objects.filter(hour_at__gte=start, hour_at__lt=end)
    if pool is not None:
        held = held.filter(pool=pool)
    by_hour = dict(
        held.order_by()
        .values("hour_at")
        .annotate(held=Sum("held_seconds"))
        .values_list("hour_at", "held")
    )
    return [
        HourUse(
            int(row["hour_at"].timestamp()),
            by_hour.get(row["hour_at"], 0),
            row["gpus"] * HOUR_SECONDS,
        )
        for row in _gpu_hours(start, end, pool).annotate(gpus=Count("pk"))
    ]


def _gpu_hours(start: datetime, end: datetime, pool: Pool | None) -> Any:
    """Return the hours with data, grouped by hour."""
    rows = SampleHour.objects.filter(hour_at__gte=start, hour_at__lt=end)
    if pool is not None:
        rows = rows.filter(gpu__pool=pool)
    return rows.order_by().values("hour_at")


def _rows(week: list[WeekHour], now: datetime) -> list[tuple[str, list[HourCell]]]:
    """Return one row per hour of the day and one cell per day, which fits a phone."""
    return [
        (
            f"{hour:02}:00",
            [
                HourCell(
                    hour=one,
                    level=None
                    if one.free_ratio is None
                    else round(one.free_ratio * LEVELS),
                    now=(one.day, one.hour) == (now.weekday(), now.hour),
                )
                for one in week[hour::HOURS]
            ],
        )
        for hour in range(HOURS)
    ]


def _shown(found: list[Stretch]) -> list[tuple[str, float]]:
    return [(one.words, one.free_ratio) for one in found]


def _csv_rows(week: list[WeekHour]) -> Iterator[tuple[object, ...]]:
    yield ("day", "hour", "free_ratio", "hours_counted")
    for one in week:
        ratio = None if one.free_ratio is None else round(one.free_ratio, 4)
        yield (DAY_NAMES[one.day], f"{one.hour:02}:00", ratio, one.weeks)

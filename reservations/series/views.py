"""Bookings that repeat: the list, the form with its preview, and one with its days."""

from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Count, Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.dateparse import parse_date
from django.utils.translation import gettext
from django.views.decorators.http import require_POST, require_safe

from reservations.models import Occurrence, Series
from reservations.rules.errors import NotFound
from reservations.rules.figures import day_text
from reservations.rules.lifecycle import State
from reservations.series import series_end as series_ending
from reservations.series.forms import SeriesFilterForm
from reservations.series.recurrence import MOST_TIMES, Repeat
from reservations.series.series_days import rule_of
from reservations.store.access import reader
from reservations.store.booking_facts import site_policy
from reservations.store.gpu_rows import calendar_gpus
from reservations.store.membership_rights import payers
from reservations.web.api_parts import count_request
from reservations.web.forms import read_draft
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import counted, joined, sentence
from telemetry.web.error_answers import message_of
from telemetry.web.query_filters import read_filters

PAGE_ROWS = 25
_WORDS = {
    "later": "waits",
    "skipped": sentence("skipped"),
    "ahead": sentence("too far ahead, booked automatically later"),
}


@require_safe
def series_list(request: HttpRequest) -> HttpResponse:
    """List the User's Series, newest first."""
    asked = read_filters(SeriesFilterForm, request.GET)
    rows = Series.objects.filter(user=reader(request)).prefetch_related("gpus__node")
    state = asked.values.get("state") or "running"
    if state != "all":
        rows = rows.filter(state=state)
    rows = rows.annotate(
        booked=Count("occurrences", filter=Q(occurrences__state="booked")),
        waiting=Count("occurrences", filter=Q(occurrences__state="later")),
        refused=Count("occurrences", filter=Q(occurrences__state="refused")),
    ).order_by("-created_at", "-pk")
    page = Paginator(rows, PAGE_ROWS).get_page(asked.values.get("page") or 1)
    return render(
        request,
        "reservations/series/series_list.html",
        {
            "page": page,
            "rows": [(row, rule_of(row), _gpus(row)) for row in page],
            "state": state,
            "states": ["running", "ended", "all"],
            "notices": asked.notices,
        },
    )


@require_safe
def series_new(request: HttpRequest) -> HttpResponse:
    """Show the form, filled from the address like a draft of the calendar."""
    user = reader(request)
    draft, notices = read_draft(request.GET)
    policy = site_policy()
    return render(
        request,
        "reservations/series/series_new.html",
        {
            "draft": draft or {},
            "gpus": [gpu for gpu in calendar_gpus() if gpu.bookable],
            "memberships": payers(user),
            "notices": notices,
            "repeats": [(repeat.value, repeat.words) for repeat in Repeat],
            "most_times": MOST_TIMES,
            "config": {
                "zone": timezone.get_current_timezone_name(),
                "grid_seconds": policy.grid_seconds,
            },
        },
    )


@require_safe
def series_show(request: HttpRequest, pk: int) -> HttpResponse:
    """Show one Series with every day: booked, waiting, refused, left out, ahead."""
    try:
        row = series_ending.own_series(pk, reader(request))
    except NotFound as error:
        raise Http404(str(error)) from error
    rule = rule_of(row)
    known = {
        one.day: one
        for one in row.occurrences.select_related("reservation").order_by("day")
    }
    now = timezone.now()
    days = [_day(day, rule.window(day), known.get(day), now) for day in rule.days()]
    asked = read_filters(SeriesFilterForm, request.GET)
    page = Paginator(days, PAGE_ROWS).get_page(asked.values.get("page") or 1)
    context = {
        "series": row,
        "rule": rule,
        "gpus": _gpus(row),
        "page": page,
        "running": row.state == Series.State.RUNNING,
    }
    return render(request, "reservations/series/series_show.html", context)


def _day(day: Any, window: Any, one: Occurrence | None, now: Any) -> dict[str, Any]:
    booked = one.reservation if one is not None else None
    state = "ahead"
    if one is not None:
        state = one.state if booked is None else booked.state
    ahead = window.start > now
    open_states = ("ahead", "later", "refused", State.CONFIRMED)
    return {
        "day": day,
        "window": window,
        "state": _WORDS.get(state, state),
        "why": one.why if one is not None and booked is None else "",
        "reservation": booked,
        "may_skip": ahead and state in open_states,
        "may_cut": ahead,
    }


def _gpus(row: Series) -> str:
    return ", ".join(sorted(str(gpu) for gpu in row.gpus.all()))


@require_POST
def series_end(request: HttpRequest, pk: int) -> HttpResponse:
    """Book no further day."""
    return _act(request, pk, "end")


@require_POST
def series_skip(request: HttpRequest, pk: int) -> HttpResponse:
    """Leave one day out."""
    return _act(request, pk, "skip")


@require_POST
def series_cancel(request: HttpRequest, pk: int) -> HttpResponse:
    """Cancel a day and all that follow."""
    return _act(request, pk, "cancel")


def _act(request: HttpRequest, pk: int, act: str) -> HttpResponse:
    """Run an action. A refusal is shown on the Series' page."""
    user = reader(request)
    try:
        now = count_request(user, writes=True)
        if act == "end":
            series_ending.end(series_id=pk, user=user, now=now)
            messages.success(
                request,
                gettext("The series has stopped. Days that are booked already stay."),
            )
            return redirect("series-one", pk)
        day = _posted_day(request)
        if day is None:
            messages.error(request, gettext("Day: enter a date, as 2026-03-05."))
        elif act == "skip":
            series_ending.skip_day(series_id=pk, user=user, day=day, now=now)
            messages.success(request, sentence("{day} is skipped.", day=day_text(day)))
        else:
            gone = series_ending.cancel_from(series_id=pk, user=user, day=day, now=now)
            cancelled = counted(
                "{n} booking cancelled.", "{n} bookings cancelled.", gone
            )
            ends = sentence("The series ends before {day}.", day=day_text(day))
            messages.success(request, joined([cancelled, ends]))
    except NotFound as error:
        raise Http404(str(error)) from error
    except CodedError as error:
        messages.error(request, message_of(error))
    return redirect("series-one", pk)


def _posted_day(request: HttpRequest) -> Any:
    try:
        return parse_date(request.POST.get("day", ""))
    except ValueError:
        return None

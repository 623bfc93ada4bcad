"""Bookings that repeat: /api/v1/series. The first one is given, the rest follow."""

from datetime import date
from typing import Any, Literal, NotRequired, TypedDict

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Query, Router, Status
from pydantic import Field

from reservations.models import Occurrence, Series
from reservations.series import series_end
from reservations.series import service as series
from reservations.series.recurrence import MOST_TIMES, Rule, rule_from
from reservations.series.series_days import JudgedDay, SeriesWish, rule_of
from reservations.store.calendar_queries import iso
from reservations.web.api_parts import (
    FreeSlot,
    count_request,
    decision_json,
    hours_of,
    own_membership,
    signed_in,
    slot_json,
)
from reservations.web.request_keys import repeatable
from reservations.web.schemas import BookIn, _Strict
from telemetry.web.answer_types import LocalDay, UtcInstant
from telemetry.web.cursor_page import CURSOR, NextPage, cursor_page, link_next
from telemetry.web.error_answers import message_of

router = Router(tags=["series"])
MOST_LISTED = 50


class SeriesPreviewIn(BookIn):
    """The first booking, how it repeats, and until when or how often."""

    repeat: Literal["daily", "weekdays", "weekly"]
    until: date | None = None
    times: int | None = Field(None, ge=1, le=MOST_TIMES)


class SeriesIn(SeriesPreviewIn):
    """A series to save, with the treatment of days that are refused."""

    skip_refused: bool = False
    skip: list[date] = Field(default_factory=list, max_length=MOST_TIMES)


class DayIn(_Strict):
    """One local day of a series."""

    day: date


class SeriesPreviewDay(TypedDict):
    """One day of a series as it would be, or was, booked."""

    day: LocalDay
    start: UtcInstant
    end: UtcInstant
    state: str
    """booked, later, refused or skipped."""
    reservation: NotRequired[int]
    kind: NotRequired[str | None]
    """firm or flex."""
    cost_credits: NotRequired[float]
    """Credits: weighted GPU-hours."""
    taken_until: NotRequired[UtcInstant | None]
    """Until when flex may be taken. Null: it cannot be."""
    displaces: NotRequired[int]
    """Flex reservations of others that it takes."""
    code: NotRequired[str]
    """The rule that refuses it."""
    why: NotRequired[str]
    """The refusal in a sentence."""
    next_slot: NotRequired[FreeSlot | None]
    """Another time that would work."""


class SeriesDayAnswer(TypedDict):
    """One day of a saved series."""

    day: LocalDay
    state: str
    """booked, later, refused or skipped."""
    reservation: int | None
    code: str
    """The rule that refused it. Empty: none."""
    why: str
    """The refusal in a sentence."""


class SeriesAnswer(TypedDict):
    """A booking that repeats."""

    id: int
    state: str
    """running or ended."""
    words: str
    """The rule in words."""
    repeat: str
    """daily, weekdays or weekly."""
    first_day: LocalDay
    local_start: str
    """HH:MM in its zone."""
    zone: str
    """IANA name of the time zone."""
    hours: float
    """Length of each booking."""
    until: LocalDay | None
    """Last day. Null: it ends after `times`."""
    times: int | None
    gpu_ids: list[int]
    purpose: str


class ListedSeries(SeriesAnswer):
    """A series with the result of each day."""

    days: list[SeriesDayAnswer]


class NewSeries(SeriesAnswer):
    """A new series with the result of each day."""

    days: list[SeriesPreviewDay]


class SeriesList(NextPage):
    """The caller's series."""

    series: list[ListedSeries]


class SeriesOutlook(TypedDict):
    """What a series would book."""

    words: str
    """The rule in words."""
    zone: str
    """IANA name of the time zone."""
    days: list[SeriesPreviewDay]
    cost_credits: float
    """Credits (weighted GPU-hours) of all days that can be booked now."""


class SeriesCancelled(TypedDict):
    """The days of a series that were cancelled."""

    id: int
    """Of the series."""
    cancelled: int
    """Number of days."""


def _rule(what: SeriesPreviewIn) -> Rule:
    return rule_from(
        repeat=what.repeat,
        start=what.start,
        end=what.end,
        zone=timezone.get_current_timezone_name(),
        until=what.until,
        times=what.times,
    )


def _wish(request: HttpRequest, what: SeriesPreviewIn, *, writes: bool) -> SeriesWish:
    user = signed_in(request)
    return series.checked_wish(
        user=user,
        membership=own_membership(user, what.membership),
        gpu_ids=what.gpu_ids,
        rule=_rule(what),
        purpose=what.purpose,
        now=count_request(user, writes=writes),
    )


@router.post("/series/preview")
def preview(request: HttpRequest, what: SeriesPreviewIn) -> SeriesOutlook:
    """Check every day of a series, without booking it."""
    wanted = _wish(request, what, writes=False)
    now = count_request(signed_in(request), writes=False)
    looked = series.rehearse(wanted, now=now)
    return {
        "words": wanted.rule.words,
        "zone": wanted.rule.zone,
        "days": [_day(one) for one in looked],
        "cost_credits": hours_of(
            sum(one.decision.cost_gpu_seconds for one in looked if one.decision)
        ),
    }


@router.post("/series", response={201: dict[str, Any]})
@repeatable
def create(request: HttpRequest, what: SeriesIn) -> Status[NewSeries]:
    """Create a series. Days within the horizon are booked now, the others later."""
    wanted = _wish(request, what, writes=True)
    made, looked = series.create(
        wanted,
        skip_refused=what.skip_refused,
        skip=what.skip,
        now=count_request(signed_in(request), writes=False),
    )
    days = [_day(one) for one in looked]
    return Status(201, {**_series(made), "days": days})


@router.get("/series")
def listed(
    request: HttpRequest,
    response: HttpResponse,
    limit: int = Query(MOST_LISTED, ge=1, le=MOST_LISTED),
    cursor: str = CURSOR,
) -> SeriesList:
    """The caller's series, newest first, with the result of each day."""
    rows = Series.objects.filter(user=signed_in(request)).prefetch_related(
        "gpus", "occurrences"
    )
    page, following = cursor_page(rows, by="created_at", cursor=cursor, limit=limit)
    link_next(request, response, following)
    return {
        "series": [
            {
                **_series(row),
                "days": [_series_json(day) for day in row.occurrences.all()],
            }
            for row in page
        ],
        "next": following,
    }


@router.post("/series/{int:series_id}/end")
def end(request: HttpRequest, series_id: int) -> SeriesAnswer:
    """End a series. Days that are booked stay."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    return _series(series_end.end(series_id=series_id, user=user, now=now))


@router.post("/series/{int:series_id}/skip")
def skip(request: HttpRequest, series_id: int, which: DayIn) -> SeriesDayAnswer:
    """Skip one day of a series. If it is booked, it is cancelled."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    found = series_end.skip_day(series_id=series_id, user=user, day=which.day, now=now)
    return _series_json(found)


@router.post("/series/{int:series_id}/cancel-from")
def cancel_from(request: HttpRequest, series_id: int, which: DayIn) -> SeriesCancelled:
    """Cancel a day of a series and all later days."""
    user = signed_in(request)
    now = count_request(user, writes=True)
    cancelled = series_end.cancel_from(
        series_id=series_id, user=user, day=which.day, now=now
    )
    return {"id": series_id, "cancelled": cancelled}


def _series(row: Series) -> SeriesAnswer:
    return {
        "id": row.pk,
        "state": row.state,
        "words": rule_of(row).words,
        "repeat": row.repeat,
        "first_day": row.first_day.isoformat(),
        "local_start": f"{row.local_start:%H:%M}",
        "zone": row.zone,
        "hours": row.duration_seconds / 3600,
        "until": row.until.isoformat() if row.until else None,
        "times": row.times,
        "gpu_ids": sorted(gpu.pk for gpu in row.gpus.all()),
        "purpose": row.purpose,
    }


def _day(one: JudgedDay) -> SeriesPreviewDay:
    told: SeriesPreviewDay = {
        "day": one.day.isoformat(),
        "start": iso(one.window.start),
        "end": iso(one.window.end),
        "state": one.state,
    }
    if one.reservation is not None:
        told["reservation"] = one.reservation.pk
    if one.decision is not None:
        decided = decision_json(one.decision)
        told["kind"] = decided["kind"]
        told["cost_credits"] = decided["cost_credits"]
        told["taken_until"] = decided["taken_until"]
        told["displaces"] = len(one.decision.displaced)
    if one.refusal is not None:
        slot = one.refusal.next_slot
        told["code"] = one.refusal.code
        told["why"] = message_of(one.refusal)
        told["next_slot"] = slot_json(slot) if slot else None
    return told


def _series_json(row: Occurrence) -> SeriesDayAnswer:
    return {
        "day": row.day.isoformat(),
        "state": row.state,
        "reservation": row.reservation_id,
        "code": row.code,
        "why": row.why,
    }

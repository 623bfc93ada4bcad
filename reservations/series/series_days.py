"""Judge and book some days of a Series under all locks."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from django.db import IntegrityError, transaction

from reservations.booking.service import (
    judge,
    overlap_refusal,
    request_of,
    write_decision,
)
from reservations.engines.engine_port import ReservationEngine
from reservations.engines.engine_refusals import EngineRefused
from reservations.engines.service import STEP_SECONDS
from reservations.models import Membership, Occurrence, Reservation, Series
from reservations.rules.decision import Decision
from reservations.rules.errors import Refusal
from reservations.rules.policy import Policy
from reservations.rules.window import Window
from reservations.series.recurrence import PASSING, Repeat, Rule
from reservations.store import locks

BOOKED, LATER, REFUSED, SKIPPED = (
    Occurrence.State.BOOKED,
    Occurrence.State.LATER,
    Occurrence.State.REFUSED,
    Occurrence.State.SKIPPED,
)
AHEAD = "ahead"


@dataclass(slots=True)
class JudgedDay:
    """One day, judged."""

    day: date
    window: Window
    state: str
    """booked, later (its refusal may disappear), refused, ahead (beyond the
    horizon).
    """
    decision: Decision | None = None
    refusal: Refusal | None = None
    reservation: Reservation | None = None


@dataclass(frozen=True, slots=True)
class SeriesWish:
    """The booking to repeat."""

    membership: Membership
    gpu_ids: tuple[int, ...]
    rule: Rule
    purpose: str = ""


def rule_of(row: Series) -> Rule:
    """Return the Rule of a row."""
    return Rule(
        repeat=Repeat(row.repeat),
        first_day=row.first_day,
        local_start=row.local_start,
        zone=row.zone,
        duration_seconds=row.duration_seconds,
        until=row.until,
        times=row.times,
    )


def days_in(rule: Rule, at: datetime, policy: Policy) -> list[date]:
    """Return the days ahead that begin within the horizon."""
    latest = at + timedelta(seconds=policy.firm_horizon_seconds)
    return [day for day in rule.days() if at <= rule.window(day).start <= latest]


def days_ahead(rule: Rule, at: datetime, policy: Policy) -> list[JudgedDay]:
    latest = at + timedelta(seconds=policy.firm_horizon_seconds)
    windows = ((day, rule.window(day)) for day in rule.days())
    return [
        JudgedDay(d, window, AHEAD) for d, window in windows if window.start > latest
    ]


def book_days(
    wanted: SeriesWish,
    days: Sequence[date],
    policy: Policy,
    at: datetime,
    engine: ReservationEngine | None,
) -> list[JudgedDay]:
    """Book each day under the locks of all. A refusal does not stop the other days,
    but an engine that does not answer is asked once.

    Args:
        engine: of all days, which has `STEP_SECONDS` for them together. None: the
            portal has the Gpus.
    """
    if not days:
        locks.read(wanted.membership, wanted.gpu_ids)
        return []
    locked = locks.lock(wanted.membership, wanted.gpu_ids)
    windows = [wanted.rule.window(day) for day in days]
    locks.lock_flex(locked.gpus, windows[0].start, windows[-1].end)
    if engine is not None:
        engine = engine.within(STEP_SECONDS)
    booked: list[JudgedDay] = []
    away: Refusal | None = None
    for day, window in zip(days, windows, strict=True):
        if away is None:
            one = _book_one(day, window, wanted, locked, policy, at, engine)
        else:
            one = JudgedDay(day, window, _state_of(away), None, away)
        booked.append(one)
        if isinstance(one.refusal, EngineRefused) and one.refusal.cause == "away":
            away = one.refusal
    return booked


def _state_of(refusal: Refusal) -> str:
    passes = isinstance(refusal, EngineRefused) and refusal.passes
    return LATER if passes or refusal.code in PASSING else REFUSED


def _book_one(
    day: date,
    window: Window,
    wanted: SeriesWish,
    locked: locks.LockedRows,
    policy: Policy,
    at: datetime,
    engine: ReservationEngine | None,
) -> JudgedDay:
    try:
        request = request_of(locked.gpus, window.start, window.end, now=at)
        decision = judge(
            request, locked, policy=policy, names=policy.names_visible, taking=True
        )
        if decision.refusal is not None:
            raise decision.refusal
        with transaction.atomic():
            made = write_decision(
                request,
                decision,
                locked,
                purpose=wanted.purpose,
                actor=wanted.membership.user,
                policy=policy,
                engine=engine,
            )
    except IntegrityError as error:
        refusal: Refusal = overlap_refusal(error, locked.gpus[0], window)
    except Refusal as refused:
        refusal = refused
    else:
        return JudgedDay(day, window, BOOKED, decision, reservation=made)
    return JudgedDay(day, window, _state_of(refusal), None, refusal)


def lock_row(pk: int) -> Series | None:
    """Lock a Series, as the last lock. None: it has ended."""
    rows = Series.objects.select_for_update(no_key=True, of=("self",))
    return rows.filter(pk=pk, state=Series.State.RUNNING).first()

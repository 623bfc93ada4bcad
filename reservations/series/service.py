"""Series of bookings: preview, save, extend and end.

Each day is a normal booking, with the same locks, rules and ledger. The preview is the
real booking, rolled back (`rehearse`). Days beyond the horizon are booked by the tick
once they are within it (`extend`).
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from django.db import transaction

from reservations.booking import slot_search
from reservations.engines import service as engines
from reservations.models import Membership, Notice, Occurrence, Series, User
from reservations.notifications.service import notify
from reservations.rules.policy import Policy
from reservations.rules.window import whole_second
from reservations.series.recurrence import Rule, SeriesConflict, SeriesInvalid
from reservations.series.series_days import (
    BOOKED,
    LATER,
    REFUSED,
    SKIPPED,
    JudgedDay,
    SeriesWish,
    book_days,
    days_ahead,
    days_in,
    lock_row,
    rule_of,
)
from reservations.store import locks
from reservations.store.audit_log import audit_act
from reservations.store.booking_facts import site_policy
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import sentence
from telemetry.rules.isolated_steps import isolated

MOST_SERIES = 10
"""Running Series of one person."""
MOST_ROWS = 50
"""Series per tick."""
AGAIN = timedelta(minutes=10)
"""A day whose refusal may disappear is tried again after this time."""
TOLD_BEFORE = timedelta(hours=24)
"""How long before its start the holder of a day without a booking is notified."""
MOST_NEXT_SLOTS = 5
log = logging.getLogger(__name__)


def checked_wish(
    *,
    user: User,
    membership: Membership | None,
    gpu_ids: Sequence[int],
    rule: Rule,
    purpose: str = "",
    now: datetime,
) -> SeriesWish:
    """Return the request, validated without reading the calendar.

    Raises:
        SeriesInvalid: the first day has begun.
        MembershipNeeded, NotAllowed.
    """
    if rule.window(next(rule.days())).start < whole_second(now):
        raise SeriesInvalid(
            field="start", why=sentence("has passed; begin with the next day")
        )
    chosen = locks.choose_membership(user, membership)
    return SeriesWish(chosen, tuple(dict.fromkeys(gpu_ids)), rule, purpose)


def rehearse(wanted: SeriesWish, *, now: datetime) -> list[JudgedDay]:
    """Return the effect of saving for each day. Everything is rolled back.

    Raises:
        NotFound: a Gpu that does not exist.
    """
    at = whole_second(now)
    policy = site_policy()
    engine = engines.rehearsal_of(wanted.gpu_ids, now=at)
    with transaction.atomic(durable=True):
        days = days_in(wanted.rule, at, policy)
        looked = book_days(wanted, days, policy, at, engine)
        transaction.set_rollback(True)
    for one in [one for one in looked if one.refusal is not None][:MOST_NEXT_SLOTS]:
        assert one.refusal is not None
        slot_search.add_next_slot(
            one.refusal,
            wanted.membership,
            wanted.gpu_ids,
            one.window.start,
            one.window.end,
            now=at,
            policy=policy,
        )
    return looked + days_ahead(wanted.rule, at, policy)


def create(
    wanted: SeriesWish,
    *,
    skip_refused: bool = False,
    skip: Collection[date] = (),
    now: datetime,
) -> tuple[Series, list[JudgedDay]]:
    """Book every day within the horizon and store the rest for the tick.

    Args:
        skip_refused: book the others if some days are refused.
        skip: days that are left out.

    Raises:
        SeriesConflict: some are refused, and the request does not leave them out.
        SeriesInvalid: too many Series run already.
    """
    at = whole_second(now)
    policy = site_policy()
    user = wanted.membership.user
    engine = engines.engine_for_many(wanted.gpu_ids, now=at)
    with transaction.atomic(durable=True):
        days = [day for day in days_in(wanted.rule, at, policy) if day not in skip]
        looked = book_days(wanted, days, policy, at, engine)
        if Series.objects.filter(user=user, state="running").count() >= MOST_SERIES:
            raise SeriesInvalid(
                field="times",
                why=sentence(
                    "cannot be: {most} series run already",
                    most=MOST_SERIES,
                ),
            )
        refused = [one for one in looked if one.state == REFUSED]
        if refused and (not skip_refused or len(refused) == len(looked)):
            raise _conflict(refused, len(looked), wanted.rule.zone)
        made = _save_series(wanted, skip_refused=skip_refused, at=at)
        _store_day_results(made, looked, at)
        for day in set(wanted.rule.days()) & set(skip):
            Occurrence.objects.create(series=made, day=day, state=SKIPPED, looked_at=at)
        _schedule_next_run(made, wanted.rule, policy, at)
        audit_act(verb="series.made", subject=f"series:{made.pk}", actor=user, now=at)
    return made, looked


def extend(at: datetime, policy: Policy) -> dict[str, int]:
    """Book the days that are within the horizon now. A step of the tick."""
    due = Series.objects.filter(state="running", look_at__lte=at).order_by("look_at")
    booked = conflicts = 0
    for pk in due.values_list("pk", flat=True)[:MOST_ROWS]:
        with isolated(log, "series %s: going on failed", pk):
            done = _extend(pk, at, policy)
            booked += sum(one.state == BOOKED for one in done)
            conflicts += sum(one.state == REFUSED for one in done)
    return {"series_booked": booked, "series_conflicts": conflicts}


def _conflict(refused: Sequence[JudgedDay], of: int, zone: str) -> SeriesConflict:
    first = refused[0].refusal
    assert first is not None
    return SeriesConflict(
        days=tuple(one.day.isoformat() for one in refused),
        of=of,
        first_why=first.text(ZoneInfo(zone)),
    )


def _save_series(wanted: SeriesWish, *, skip_refused: bool, at: datetime) -> Series:
    rule = wanted.rule
    made = Series.objects.create(
        membership=wanted.membership,
        user=wanted.membership.user,
        repeat=rule.repeat,
        first_day=rule.first_day,
        local_start=rule.local_start,
        zone=rule.zone,
        duration_seconds=rule.duration_seconds,
        until=rule.until,
        times=rule.times,
        skip_refused=skip_refused,
        purpose=wanted.purpose,
        created_at=at,
        look_at=at,
    )
    made.gpus.set(wanted.gpu_ids)
    return made


def _store_day_results(row: Series, looked: Iterable[JudgedDay], at: datetime) -> None:
    """Store the result of each day. The result of a day that waited is replaced."""
    zone = ZoneInfo(row.zone)
    for one in looked:
        Occurrence.objects.update_or_create(
            series=row,
            day=one.day,
            defaults={
                "state": one.state,
                "reservation": one.reservation,
                "code": one.refusal.code if one.refusal else "",
                "why": one.refusal.text(zone)[:400] if one.refusal else "",
                "looked_at": at,
            },
        )


# --- the tick
# --------------------------------------------------------------------------


def _extend(pk: int, at: datetime, policy: Policy) -> list[JudgedDay]:
    """Process one Series once, in its own transaction."""
    row = Series.objects.select_related("user", "membership__account").get(pk=pk)
    gpu_ids = tuple(row.gpus.order_by("pk").values_list("pk", flat=True))
    engine = engines.engine_for_many(gpu_ids, now=at)
    with transaction.atomic(durable=True):
        try:
            chosen = locks.choose_membership(row.user, row.membership)
        except CodedError as error:
            Series.objects.end(pk, at=at)
            _notify_owner(row, {"ended": True, "why": error.text()}, "ended", at)
            return []
        locks.lock(chosen, gpu_ids)
        fresh = lock_row(pk)
        if fresh is None:
            return []
        # It may have been shortened since it was read.
        rule = rule_of(fresh)
        known = dict(row.occurrences.values_list("day", "state"))
        days = [
            day for day in days_in(rule, at, policy) if known.get(day, LATER) == LATER
        ]
        wanted = SeriesWish(chosen, gpu_ids, rule, row.purpose)
        looked = book_days(wanted, days, policy, at, engine)
        looked += _missed(rule, known, at)
        _store_day_results(row, looked, at)
        _notify_of_conflicts(row, looked, at)
        _schedule_next_run(row, rule, policy, at)
    return looked


def _missed(rule: Rule, known: dict[date, str], at: datetime) -> Iterator[JudgedDay]:
    """Yield the days that waited until they had begun, or were never processed."""
    for day in rule.days():
        window = rule.window(day)
        if window.start >= at:
            return
        if known.get(day, LATER) == LATER:
            yield JudgedDay(day, window, REFUSED)


def _notify_of_conflicts(
    row: Series, looked: Iterable[JudgedDay], at: datetime
) -> None:
    zone = ZoneInfo(row.zone)
    for one in looked:
        soon = one.window.start - at <= TOLD_BEFORE
        if one.state == REFUSED or (one.state == LATER and soon):
            why: str = sentence("It waited until its start.")
            if one.refusal is not None:
                why = one.refusal.text(zone)
            detail = {"start": one.window.start.isoformat(), "why": why}
            _notify_owner(row, detail, one.day.isoformat(), at)


def _notify_owner(
    row: Series, detail: Mapping[str, object], key: str, at: datetime
) -> None:
    notify(
        user=row.user,
        kind=Notice.Kind.SERIES_CONFLICT,
        detail={**detail, "series": row.pk, "url": "/series/"},
        now=at,
        key=f"series:{row.pk}:{key}",
    )


def _schedule_next_run(row: Series, rule: Rule, policy: Policy, at: datetime) -> None:
    """Store when the series is due again. End it if no day is left."""
    states = dict(row.occurrences.values_list("day", "state"))
    horizon = timedelta(seconds=policy.firm_horizon_seconds)
    looks = [
        max(rule.window(day).start - horizon, at + timedelta(seconds=1))
        for day in rule.days()
        if day not in states and rule.window(day).start >= at
    ][:1]
    if LATER in states.values():
        looks.append(at + AGAIN)
    if looks:
        Series.objects.filter(pk=row.pk).update(look_at=min(looks))
        return
    last = max((rule.window(day).end for day in states), default=at)
    if last <= at:
        Series.objects.end(row.pk, at=at)
    else:
        Series.objects.filter(pk=row.pk).update(look_at=last)

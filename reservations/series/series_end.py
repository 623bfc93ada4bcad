"""End a Series, leave one day out, or cancel a day and all that follow."""

import logging
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from django.db import transaction

from reservations.booking import release
from reservations.models import Occurrence, Series, User
from reservations.rules.errors import NotFound, Refusal
from reservations.rules.lifecycle import State
from reservations.rules.window import whole_second
from reservations.series.recurrence import SeriesInvalid
from reservations.series.series_days import (
    BOOKED,
    LATER,
    REFUSED,
    SKIPPED,
    lock_row,
    rule_of,
)
from reservations.store.audit_log import audit_act
from telemetry.protocol.sentences import sentence

log = logging.getLogger(__name__)


def end(*, series_id: int, user: User, now: datetime) -> Series:
    """Book no further day. Booked days stay.

    Raises:
        NotFound: no such series of this User.
    """
    at = whole_second(now)
    row = own_series(series_id, user)
    with transaction.atomic(durable=True):
        if Series.objects.end(row.pk, at=at):
            audit_act(
                verb="series.ended", subject=f"series:{row.pk}", actor=user, now=at
            )
    row.refresh_from_db()
    return row


def skip_day(*, series_id: int, user: User, day: date, now: datetime) -> Occurrence:
    """Leave one day out. If it is booked, it is cancelled.

    Raises:
        SeriesInvalid: it is no day of the Series, or it has begun.
        NotFound.
    """
    at = whole_second(now)
    row = own_series(series_id, user)
    rule = rule_of(row)
    if day not in set(rule.days()) or rule.window(day).start <= at:
        raise SeriesInvalid(
            field="day", why=sentence("is not a future day of this series")
        )
    with transaction.atomic(durable=True):
        lock_row(row.pk)
        found, _ = Occurrence.objects.get_or_create(
            series=row, day=day, defaults={"state": SKIPPED, "looked_at": at}
        )
        if found.state in (LATER, REFUSED):
            found.state, found.looked_at = SKIPPED, at
            found.save(update_fields=["state", "looked_at"])
    _cancel([found], user, at)
    return found


def cancel_from(*, series_id: int, user: User, day: date, now: datetime) -> int:
    """End a Series before a day. That day and all that follow are cancelled.

    Returns:
        How many bookings were cancelled.

    Raises:
        NotFound.
    """
    at = whole_second(now)
    row = own_series(series_id, user)
    with transaction.atomic(durable=True):
        lock_row(row.pk)
        last = day - timedelta(days=1)
        if row.until is None or row.until > last:
            Series.objects.filter(pk=row.pk).update(until=last)
        after = Occurrence.objects.filter(series=row, day__gte=day)
        after.filter(state=LATER).update(state=SKIPPED, looked_at=at)
        if last < _local_day(row, at):
            Series.objects.end(row.pk, at=at)
        audit_act(
            verb="series.cut",
            subject=f"series:{row.pk}",
            actor=user,
            now=at,
            from_day=day.isoformat(),
        )
    return _cancel(after.filter(state=BOOKED), user, at)


def own_series(pk: int, user: User) -> Series:
    """Return a series of the User.

    Raises:
        NotFound: no such series of this User.
    """
    rows = Series.objects.select_related("membership__account", "user")
    found = rows.filter(pk=pk, user=user).first()
    if found is None:
        raise NotFound(what=sentence("series #{pk} of yours", pk=pk))
    return found


def _cancel(rows: Iterable[Occurrence], user: User, at: datetime) -> int:
    """Cancel the days that have not begun, each in its own transaction."""
    done = 0
    for one in rows:
        if one.reservation is None or one.reservation.state != State.CONFIRMED:
            continue
        try:
            release.cancel(reservation_id=one.reservation.pk, user=user, now=at)
        except Refusal as refusal:
            log.info("day %s of series %s stays: %s", one.day, one.series_id, refusal)
            continue
        done += 1
    return done


def _local_day(row: Series, at: datetime) -> date:
    """Return the local day of an instant, in a Series' own zone."""
    return at.astimezone(ZoneInfo(row.zone)).date()

"""Alerts as one person may read them: which ones, and with whose names.

The operator sees all. All others, heads included, see Alerts about their own bookings,
and those in which they were warned as an intruder. Names follow the site's setting.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Case, IntegerField, Q, Value, When
from django.utils.translation import gettext, ngettext

from gpuportal.alerts.text import facts_of, reading_rows, sentence
from gpuportal.board.board_snapshot import Viewer
from reservations.models import Allocation, Reservation, User
from telemetry.models import Alert, AlertQuerySet, Response
from telemetry.rules.alert_rules import Severity, rules_for_bookers

STATES = ("open", "acknowledged", "snoozed", "closed", "all")
SEVERITIES = tuple(word.value for word in Severity)[::-1]
"""Most severe first."""
WORST_FIRST = ("rank", "-opened_at")


def visible_alerts(user: User, now: datetime) -> AlertQuerySet:
    """Return the Alerts that a User may see."""
    rows: AlertQuerySet = Alert.objects.select_related("gpu__node", "node")
    if user.is_operator:
        return rows
    booked = Allocation.objects.filter(live=True, end__gt=now, reservation__user=user)
    concerns = Q(rule__in=rules_for_bookers(), closed_at=None)
    return rows.filter(
        Q(reservation_id__in=Reservation.objects.filter(user=user).values("pk"))
        | Q(pk__in=steps_taken_against(user).values("alert"))
        | (
            concerns
            & (Q(gpu__in=booked.values("gpu")) | Q(node__in=booked.values("gpu__node")))
        )
    )


def steps_taken_against(user: User) -> Any:
    """Return the responses that were taken against a User's processes, without dry
    runs."""
    return Response.objects.filter(user_id=user.pk, dry_run=False)


def in_state(rows: AlertQuerySet, state: str, now: datetime) -> AlertQuerySet:
    """Filter by one of `STATES`. An unknown word means open."""
    if state == "all":
        return rows
    if state == "closed":
        return rows.exclude(closed_at=None)
    snoozed = Q(snoozed_until__gt=now)
    if state == "snoozed":
        return rows.open().filter(snoozed)
    if state == "acknowledged":
        return rows.open().exclude(acknowledged_at=None)
    return rows.open().exclude(snoozed)


def by_severity(rows: AlertQuerySet) -> AlertQuerySet:
    """Annotated with `rank`: 0 is the most severe."""
    cases = [When(severity=word, then=Value(n)) for n, word in enumerate(SEVERITIES)]
    rank = Case(*cases, default=Value(9), output_field=IntegerField())
    return rows.annotate(rank=rank)


def calling_alerts(user: User, now: datetime) -> AlertQuerySet:
    """Return the Alerts that the top bar counts: open, not acknowledged, not snoozed;
    worst first.

    Every page reads them, and mostly there are none. So their places come from
    separate queries, and not from joins with all columns of Gpus and Nodes.
    """
    rows = visible_alerts(user, now).select_related(None).calling(now)
    placed = rows.prefetch_related("gpu__node", "node")
    return by_severity(placed).order_by(*WORST_FIRST)


@dataclass(frozen=True, slots=True)
class AlertRow:
    """One Alert as the list shows it to one person."""

    alert: Alert
    state: str
    sentence: str
    booking: Reservation | None
    """The reservation that it concerns, if this person may open its page."""
    holder: str
    """The holder's name, if this person may see it; "" otherwise."""
    facts: list[tuple[str, str]]
    processes: list[dict[str, Any]]
    readings: list[dict[str, Any]]
    responses: list[Response]


def rows_for(alerts: Iterable[Alert], viewer: Viewer, now: datetime) -> list[AlertRow]:
    """Prepare Alerts for one person, with two queries for any number of them."""
    chosen = list(alerts)
    numbers = {alert.reservation_id for alert in chosen if alert.reservation_id}
    bookings = {
        row.pk: row
        for row in Reservation.objects.filter(pk__in=numbers).select_related(
            "user", "membership__account"
        )
    }
    responses: dict[int, list[Response]] = {}
    for row in Response.objects.filter(alert__in=chosen).order_by("at", "pk"):
        if viewer.operator or (row.user_id == viewer.user_pk and not row.dry_run):
            responses.setdefault(row.alert_id, []).append(row)
    return [
        _row(
            alert,
            bookings.get(alert.reservation_id or 0),
            responses.get(alert.pk, []),
            viewer,
            now,
        )
        for alert in chosen
    ]


def _row(
    alert: Alert,
    booking: Reservation | None,
    responses: list[Response],
    viewer: Viewer,
    now: datetime,
) -> AlertRow:
    mine = booking is not None and booking.user_id == viewer.user_pk
    return AlertRow(
        alert=alert,
        state=state_of(alert, now),
        sentence=sentence(alert.rule),
        booking=booking if mine or viewer.operator else None,
        holder=_holder(booking, viewer),
        facts=facts_of(alert, people=people_of(alert, viewer)),
        processes=[
            _process(process, viewer) for process in alert.detail.get("processes", ())
        ],
        readings=reading_rows(
            alert.readings, lambda name: name if _may_know(name, viewer) else "–"
        ),
        responses=responses,
    )


def state_of(alert: Alert, now: datetime) -> str:
    """Return the word of `STATES` that fits best."""
    if alert.closed_at is not None:
        return "closed"
    if alert.snoozed(now):
        return "snoozed"
    return "acknowledged" if alert.acknowledged_at else "open"


def _holder(booking: Reservation | None, viewer: Viewer) -> str:
    if booking is None:
        return ""
    if booking.user_id == viewer.user_pk:
        return gettext("you")
    account = str(booking.membership.account)
    return (
        f"{booking.user} ({account})"
        if viewer.named
        else gettext("a member of %(group)s") % {"group": account}
    )


def _may_know(login: str | None, viewer: Viewer) -> bool:
    return viewer.named or login in (viewer.username, viewer.unix_user)


def people_of(alert: Alert, viewer: Viewer) -> str:
    """Return the users of the processes: "bob, eve", or "you and 1 other" if names are
    hidden."""
    logins = list(alert.detail.get("users", ()))
    if viewer.named:
        return ", ".join(logins)
    others = sum(not _may_know(login, viewer) for login in logins)
    if others == len(logins):
        if not others:
            return ""
        return ngettext("%(n)s person", "%(n)s people", others) % {"n": others}
    if not others:
        return gettext("you")
    words = ngettext("you and %(n)s other", "you and %(n)s others", others)
    return words % {"n": others}


def _process(process: dict[str, Any], viewer: Viewer) -> dict[str, Any]:
    shown = _may_know(process.get("user"), viewer)
    return process | {"user": process.get("user") if shown else None}

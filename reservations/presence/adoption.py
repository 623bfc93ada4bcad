"""Book the Gpus that a person's processes use without a booking.

Such a process has an open Alert, which the samples of its node opened. The facts of a
node give no right: the booking is one that its User could make in the calendar, and the
ordinary rules decide. It is always flex, so that time that was taken without a booking
never becomes a claim within the quota.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from reservations.booking.service import book
from reservations.models import Membership, Notice, Reservation, User
from reservations.notifications.service import notify
from reservations.rules.booking_alerts import OVERRUN, SQUATTER
from reservations.rules.errors import NotFound
from reservations.rules.window import grid_ceil
from reservations.store.audit_log import audit_act
from reservations.store.booking_facts import site_policy
from reservations.store.unix_logins import unix_login
from telemetry.alerts.service import close_alert
from telemetry.models import Alert, AlertQuerySet
from telemetry.protocol.sentences import sentence

RULES = (SQUATTER, OVERRUN)
"""Alerts about a process on a Gpu that nobody has booked."""
MOST_HOURS = 24


@dataclass(frozen=True, slots=True)
class UnbookedUse:
    """The Gpus of one node that a User uses without a booking."""

    node: str
    gpu_ids: tuple[int, ...]
    labels: tuple[str, ...]
    alert_ids: tuple[int, ...]


def unbooked_use(user: User) -> tuple[UnbookedUse, ...]:
    """Return what a User may book with one click, by node."""
    return _uses_of(user, _open_alerts())


def adopt(
    *,
    user: User,
    node: str,
    hours: int,
    membership: Membership | None = None,
    now: datetime,
) -> Reservation:
    """Book what a User's processes use on a node, as flex from now.

    Args:
        user: whose processes they are. Only this User can book for them here.
        node: name of the node.
        hours: how long, 1 to ``MOST_HOURS``. The end is rounded up to the calendar's
            grid.
        membership: the membership that pays. None if the User has exactly one.
        now: the present.

    Raises:
        NotFound: the User uses nothing there without a booking, or the pool's operator
            has switched this off.
        Refusal: the rules of booking refuse it.
    """
    use = next((one for one in unbooked_use(user) if one.node == node), None)
    if use is None:
        raise NotFound(what=sentence("use of yours without a booking on this node"))
    made = book(
        user=user,
        membership=membership,
        gpu_ids=use.gpu_ids,
        start=now,
        end=grid_ceil(now + timedelta(hours=hours), site_policy().grid_seconds),
        now=now,
        flex_only=True,
    )
    with transaction.atomic():
        audit_act(
            verb="reservation.adopted",
            subject=f"reservation:{made.pk}",
            actor=user,
            now=now,
            reason=", ".join(use.labels),
            alerts=list(use.alert_ids),
        )
        for gpu_id in use.gpu_ids:
            for rule in RULES:
                close_alert(rule=rule, gpu_id=gpu_id, now=now)
    return made


def offer(now: datetime) -> dict[str, int]:
    """Notify people of their use without a booking, once for each Alert (a step of the
    tick).
    """
    alerts = list(_open_alerts())
    if not alerts:
        return {"use_offered": 0}
    logins = {login for one in alerts for login in one.detail.get("users", ())}
    active = User.objects.filter(is_active=True)
    people = active.filter(
        Q(unix_user__in=logins) | Q(unix_user="", username__in=logins)
    )
    offered = 0
    for user in people:
        for use in _uses_of(user, alerts):
            offered += _notify(user, use, now)
    return {"use_offered": offered}


def _notify(user: User, use: UnbookedUse, now: datetime) -> bool:
    """Notify about the Gpus of a node. Alerts that it was notified of add nothing."""
    keys = [f"adopt:{pk}" for pk in use.alert_ids]
    own = Notice.objects.filter(user=user, kind=Notice.Kind.UNBOOKED_USE)
    if own.filter(key=keys[-1]).exists():
        return False
    with transaction.atomic(durable=True):
        told = notify(
            user=user,
            kind=Notice.Kind.UNBOOKED_USE,
            detail={"where": ", ".join(use.labels), "url": "/alerts/#adopt"},
            now=now,
            key=keys[-1],
        )
    return told is not None


def _open_alerts() -> AlertQuerySet:
    return (
        Alert.objects.open()
        .filter(rule__in=RULES, gpu__pool__may_adopt=True)
        .select_related("gpu__node")
        .order_by("pk")
    )


def _uses_of(user: User, alerts: Iterable[Alert]) -> tuple[UnbookedUse, ...]:
    found: dict[str, list[Alert]] = {}
    login = user.unix_user or user.username
    for alert in alerts:
        assert alert.gpu is not None
        if login in alert.detail.get("users", ()):
            found.setdefault(alert.gpu.node.name, []).append(alert)
    if found and unix_login(user) != login:
        return ()
    return tuple(_use(node, own) for node, own in sorted(found.items()))


def _use(node: str, alerts: list[Alert]) -> UnbookedUse:
    gpus = {alert.gpu.pk: str(alert.gpu) for alert in alerts if alert.gpu is not None}
    return UnbookedUse(
        node=node,
        gpu_ids=tuple(sorted(gpus)),
        labels=tuple(gpus[pk] for pk in sorted(gpus)),
        alert_ids=tuple(alert.pk for alert in alerts),
    )

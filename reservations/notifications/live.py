"""Send changes of the calendar to browsers and to ingest, after commit.

There are two audiences: with names, and (a site setting) with groups only. A message to
an audience does not depend on its reader, so ``mine`` and ``editable`` are false in it.
A page knows the reader's own entries.

If the broker is unreachable, bookings are still stored. Pages read them again when they
reconnect, and ingest reads the calendar every few seconds.
"""

import json
import logging
from typing import Literal, TypedDict

import redis
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction
from django.utils import timezone

from reservations.models import Reservation
from reservations.notifications.queries import NoticeInfo
from reservations.rules.policy import Policy
from reservations.store.calendar_queries import (
    CalendarEntry,
    Reader,
    calendar_entry,
)
from telemetry.live.broker_client import BROKER

NAMED = "reservations.calendar.named"
PLAIN = "reservations.calendar.plain"
CHANGED = "reservations.changed"
"""Redis channel: the holders of Gpus have changed."""

log = logging.getLogger(__name__)
_OUTAGES = (redis.ConnectionError, redis.TimeoutError, OSError)
_EVERYBODY = Reader(user_pk=0, is_operator=False, headed=frozenset(), names=True)
_PLAIN_READER = Reader(user_pk=0, is_operator=False, headed=frozenset(), names=False)


class ReservationGone(TypedDict):
    """A Reservation that is no longer on the calendar."""

    id: int
    gone: Literal[True]


class ReservationChanged(TypedDict):
    """Sent to both groups; the handler is ``reservation_changed``."""

    type: Literal["reservation.changed"]
    reservation: CalendarEntry | ReservationGone


class NoticeTold(TypedDict):
    """Sent to one User's own group; the handler is ``notice_told``."""

    type: Literal["notice.told"]
    notice: dict[str, object]


class ClosuresChanged(TypedDict):
    """Sent to both groups; the handler is ``closures_changed``."""

    type: Literal["closures.changed"]


def user_group(user_pk: int) -> str:
    """Return the group of one User's pages."""
    return f"reservations.user.{user_pk}"


def publish_reservation(
    reservation: Reservation, *, gpu_ids: list[int], policy: Policy, gone: bool = False
) -> None:
    """Publish a Reservation to all pages once the transaction is committed."""
    now = timezone.now()
    named: CalendarEntry | ReservationGone
    plain: CalendarEntry | ReservationGone
    if gone:
        named = plain = ReservationGone(id=reservation.pk, gone=True)
    else:
        named, plain = (
            calendar_entry(
                reservation, gpu_ids=gpu_ids, reader=reader, policy=policy, now=now
            )
            for reader in (_EVERYBODY, _PLAIN_READER)
        )
    transaction.on_commit(
        lambda: _send(
            ReservationChanged(type="reservation.changed", reservation=named),
            ReservationChanged(type="reservation.changed", reservation=plain),
        ),
        robust=True,
    )


def publish_closures() -> None:
    """Have open calendars read the closures again, once the change is committed."""
    transaction.on_commit(_tell_closures, robust=True)


def _tell_closures() -> None:
    message = ClosuresChanged(type="closures.changed")
    try:
        for group in (NAMED, PLAIN):
            async_to_sync(get_channel_layer().group_send)(group, message)
    except _OUTAGES as error:
        log.warning("closures changed, but no page was told: %s", error)


def publish_notice(notice: NoticeInfo, *, user_pk: int) -> None:
    """Send a Notice to its User's open pages, once it is committed."""
    message = NoticeTold(
        type="notice.told",
        notice={
            "id": notice.pk,
            "kind": notice.kind,
            "text": notice.text,
            "reservation": notice.reservation_pk,
            "url": notice.url,
            "icon": notice.icon,
        },
    )
    transaction.on_commit(lambda: _send_live(message, user_pk), robust=True)


def _send_live(message: NoticeTold, user_pk: int) -> None:
    try:
        async_to_sync(get_channel_layer().group_send)(user_group(user_pk), message)
    except _OUTAGES as error:
        log.warning("user %s is told by the page only: %s", user_pk, error)


def _send(named: ReservationChanged, plain: ReservationChanged) -> None:
    pk = named["reservation"]["id"]
    try:
        BROKER.publish(CHANGED, json.dumps({"id": pk}))
        _send_to_groups(named, plain)
    except _OUTAGES as error:
        log.warning("reservation %s changed, but nobody was told: %s", pk, error)


@async_to_sync
async def _send_to_groups(named: ReservationChanged, plain: ReservationChanged) -> None:
    layer = get_channel_layer()
    await layer.group_send(NAMED, named)
    await layer.group_send(PLAIN, plain)

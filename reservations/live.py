"""What changes in the calendar, told after commit: to browsers and to ingest.

Two audiences: with names, and (a site setting) with groups only. A message to
an audience cannot know whose page reads it, so ``mine`` and ``editable`` are
false in it; a page knows its own.

The broker may be away: what was booked stays booked, pages read it again when
they reconnect, and ingest reads the calendar anew every few seconds anyway.
"""

import json
import logging
import threading
from typing import Literal, TypedDict

import redis
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from reservations.domain.policy import Policy
from reservations.models import Reservation
from reservations.snapshots.calendar import Reader, calendar_entry

NAMED = "reservations.calendar.named"
PLAIN = "reservations.calendar.plain"
CHANGED = "reservations.changed"
"""Redis channel: who holds Gpus has changed."""

log = logging.getLogger(__name__)
_OUTAGES = (redis.ConnectionError, redis.TimeoutError, OSError)
_EVERYBODY = Reader(user_pk=0, is_operator=False, headed=frozenset(), names=True)
_PLAIN_READER = Reader(user_pk=0, is_operator=False, headed=frozenset(), names=False)


class Gone(TypedDict):
    """A Reservation that is no longer on the calendar."""

    id: int
    gone: Literal[True]


class ReservationChanged(TypedDict):
    """Sent to both groups; the handler is ``reservation_changed``."""

    type: Literal["reservation.changed"]
    reservation: dict[str, object] | Gone


_client: redis.Redis | None = None
_client_lock = threading.Lock()


def client() -> redis.Redis:
    """Return this process's connection pool to the broker.

    Made once, under a lock: a second one that is dropped again closes, when it
    is collected, connections that other threads are reading from.
    """
    global _client
    with _client_lock:
        if _client is None:
            _client = redis.Redis.from_url(
                settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2
            )
        return _client


def publish_reservation(
    reservation: Reservation, *, gpu_ids: list[int], policy: Policy, gone: bool = False
) -> None:
    """Tell everybody about a Reservation once the transaction is committed."""
    now = timezone.now()
    named: dict[str, object] | Gone
    plain: dict[str, object] | Gone
    if gone:
        named = plain = Gone(id=reservation.pk, gone=True)
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


def _send(named: ReservationChanged, plain: ReservationChanged) -> None:
    pk = named["reservation"]["id"]
    try:
        client().publish(CHANGED, json.dumps({"id": pk}))
        _send_to_groups(named, plain)
    except _OUTAGES as error:
        log.warning("reservation %s changed, but nobody was told: %s", pk, error)


@async_to_sync
async def _send_to_groups(named: ReservationChanged, plain: ReservationChanged) -> None:
    layer = get_channel_layer()
    await layer.group_send(NAMED, named)
    await layer.group_send(PLAIN, plain)

"""Store Notices, and mark them as read."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from reservations.models import Notice, Reservation, User
from reservations.notifications import channels, live
from reservations.notifications.queries import notices_to_send
from reservations.rules.errors import NotFound
from telemetry.protocol.sentences import sentence

_ONCE = ("notice_told_once", "reservations_notice.key")
"""The constraint's name in PostgreSQL and SQLite: one Notice per key."""


def notify(
    *,
    user: User,
    kind: str,
    reservation: Reservation | None = None,
    detail: Mapping[str, Any],
    now: datetime,
    key: str = "",
) -> Notice | None:
    """Store a Notice inside the caller's transaction. Pages receive it on commit.

    Its mail and webhook deliveries are queued with it (``delivery.py`` sends them).

    Args:
        kind: a value of `Notice.Kind`.
        detail: JSON values for the text (``notifications/text/notice_forms.py``):
            instants as ISO 8601, amounts as integers. ``by``: the number of a
            Reservation whose User is the other person; ``person``: a User's number;
            ``job``: a Job's number; ``url``: a path of this site with details.
        key: a Notice with the same (user, kind, key) is stored once. Empty: always.

    Returns:
        The Notice. None: it was stored before.
    """
    told = Notice(
        user=user,
        kind=Notice.Kind(kind),
        reservation=reservation,
        told_at=now,
        detail=dict(detail),
        key=key,
    )
    if not _write(told):
        return None
    channels.queue(told, now=now)
    live.publish_notice(notices_to_send([told], user)[0], user_pk=user.pk)
    return told


def _write(told: Notice) -> bool:
    """Save it. False: the same Notice exists, perhaps from a concurrent process."""
    if not told.key:
        told.save(force_insert=True)
        return True
    before = Notice.objects.filter(user=told.user, kind=told.kind, key=told.key)
    if before.exists():
        return False
    try:
        with transaction.atomic():
            told.save(force_insert=True)
    except IntegrityError as error:
        if not any(name in str(error) for name in _ONCE):
            raise
        return False
    return True


@transaction.atomic(durable=True)
def read_notice(*, notice_id: int, user: User, now: datetime) -> None:
    """Mark one of the User's Notices as read. Idempotent.

    Raises:
        NotFound: no such Notice of this User.
    """
    own = Notice.objects.filter(pk=notice_id, user=user)
    if not own.exists():
        raise NotFound(what=sentence("notice #{pk} of yours", pk=notice_id))
    own.filter(read_at=None).update(read_at=now)


@transaction.atomic(durable=True)
def read_all(*, user: User, now: datetime) -> int:
    """Mark all Notices of a User as read. Return how many were unread."""
    return Notice.objects.unread(user).update(read_at=now)

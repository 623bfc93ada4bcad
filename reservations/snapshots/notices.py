"""Notices as their User reads them, with the names that User may see."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from reservations.domain.notices import displaced_text
from reservations.models import Notice, Reservation, User
from reservations.snapshots.calendar import Reader
from reservations.snapshots.facts import site_policy


@dataclass(frozen=True, slots=True)
class NoticeInfo:
    """One Notice, in words."""

    pk: int
    kind: str
    text: str
    reservation_pk: int
    told_at: datetime
    read: bool


def notices_of(
    user: User, *, unread: bool = False, reservation_pk: int | None = None, most: int
) -> list[NoticeInfo]:
    """Return a User's own Notices, newest first."""
    rows = Notice.objects.unread(user) if unread else Notice.objects.filter(user=user)
    if reservation_pk is not None:
        rows = rows.filter(reservation_id=reservation_pk)
    chosen = rows.select_related("reservation").prefetch_related(
        "reservation__allocations__gpu__node"
    )
    return notices_in_words(chosen[:most], user)


def notices_in_words(rows: Iterable[Notice], user: User) -> list[NoticeInfo]:
    """Return Notices of one User in words, in few queries."""
    found = list(rows)
    if not found:
        return []
    takers = Reservation.objects.select_related("user", "membership__account").in_bulk(
        [row.detail["by"] for row in found]
    )
    reader = Reader.of(user, site_policy())
    return [
        NoticeInfo(
            pk=row.pk,
            kind=row.kind,
            text=_text(row, takers[row.detail["by"]], reader),
            reservation_pk=row.reservation_id,
            told_at=row.told_at,
            read=row.read_at is not None,
        )
        for row in found
    ]


def _text(row: Notice, taker: Reservation, reader: Reader) -> str:
    account = taker.membership.account
    named = reader.sees_name(taker.user_id, account.pk)
    gpus = sorted(str(a.gpu) for a in row.reservation.allocations.all())
    return displaced_text(
        row.detail,
        start=row.reservation.start,
        gpus=", ".join(gpus),
        who=f"{taker.user} ({account})" if named else str(account),
        zone=timezone.get_current_timezone(),
    )

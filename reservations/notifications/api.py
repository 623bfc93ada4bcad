"""The caller's notices: /api/v1/notices."""

from typing import TypedDict

from django.http import HttpRequest
from django.utils import timezone
from ninja import Router

from reservations.models import User
from reservations.notifications.queries import notices_of
from reservations.notifications.service import read_notice
from reservations.store.calendar_queries import iso
from telemetry.web.answer_schema import UtcInstant

router = Router(tags=["notices"])
MOST = 100


class NoticeAnswer(TypedDict):
    """One notice."""

    id: int
    kind: str
    text: str
    reservation: int | None
    """The reservation that it is about."""
    url: str
    """Address of the page that it is about. Empty: none."""
    told_at: UtcInstant
    read: bool


class NoticeList(TypedDict):
    """The caller's notices."""

    notices: list[NoticeAnswer]


class NoticeRead(TypedDict):
    """The notice that was marked."""

    id: int
    read: bool


@router.get("/notices")
def notices(request: HttpRequest, unread: bool = False) -> NoticeList:
    """The caller's notices, newest first."""
    assert isinstance(request.user, User)
    found = notices_of(request.user, unread=unread, most=MOST)
    return {
        "notices": [
            {
                "id": one.pk,
                "kind": one.kind,
                "text": one.text,
                "reservation": one.reservation_pk,
                "url": one.url,
                "told_at": iso(one.told_at),
                "read": one.read,
            }
            for one in found
        ]
    }


@router.post("/notices/{int:notice_id}/read")
def read(request: HttpRequest, notice_id: int) -> NoticeRead:
    """Mark a notice as read. The bell no longer counts it."""
    assert isinstance(request.user, User)
    read_notice(notice_id=notice_id, user=request.user, now=timezone.now())
    return {"id": notice_id, "read": True}

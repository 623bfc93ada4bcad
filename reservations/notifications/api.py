"""The caller's notices: /api/v1/notices."""

from typing import TypedDict

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Query, Router

from reservations.models import Notice, User
from reservations.notifications.queries import notices_with_text
from reservations.notifications.service import read_notice
from reservations.store.calendar_queries import iso
from telemetry.web.answer_types import UtcInstant
from telemetry.web.cursor_page import CURSOR, NextPage, cursor_page, link_next

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


class NoticeList(NextPage):
    """The caller's notices."""

    notices: list[NoticeAnswer]


class NoticeRead(TypedDict):
    """The notice that was marked."""

    id: int
    read: bool


@router.get("/notices")
def notices(
    request: HttpRequest,
    response: HttpResponse,
    unread: bool = False,
    limit: int = Query(MOST, ge=1, le=MOST),
    cursor: str = CURSOR,
) -> NoticeList:
    """The caller's notices, newest first."""
    user = request.user
    assert isinstance(user, User)
    rows = Notice.objects.unread(user) if unread else Notice.objects.filter(user=user)
    page, following = cursor_page(rows, by="told_at", cursor=cursor, limit=limit)
    link_next(request, response, following)
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
            for one in notices_with_text(page, user)
        ],
        "next": following,
    }


@router.post("/notices/{int:notice_id}/read")
def read(request: HttpRequest, notice_id: int) -> NoticeRead:
    """Mark a notice as read. The bell no longer counts it."""
    assert isinstance(request.user, User)
    read_notice(notice_id=notice_id, user=request.user, now=timezone.now())
    return {"id": notice_id, "read": True}

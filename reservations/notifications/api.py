"""The caller's notices: /api/v1/notices."""

from django.http import HttpRequest
from django.utils import timezone
from ninja import Router

from reservations.models import User
from reservations.notifications.queries import notices_of
from reservations.notifications.service import read_notice
from reservations.store.calendar_queries import iso

router = Router(tags=["notices"])
MOST = 100


@router.get("/notices")
def notices(request: HttpRequest, unread: bool = False) -> dict[str, object]:
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
def read(request: HttpRequest, notice_id: int) -> dict[str, object]:
    """Mark a notice as read. The bell no longer counts it."""
    assert isinstance(request.user, User)
    read_notice(notice_id=notice_id, user=request.user, now=timezone.now())
    return {"id": notice_id, "read": True}

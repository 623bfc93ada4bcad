"""What a User was told, and that they have read it."""

from datetime import datetime

from django.db import transaction

from reservations.domain.errors import NotFound
from reservations.models import Notice, User


@transaction.atomic(durable=True)
def read_notice(*, notice_id: int, user: User, now: datetime) -> None:
    """Note that a User has read one of their Notices; again changes nothing.

    Raises:
        NotFound: none of that number, or somebody else's.
    """
    own = Notice.objects.filter(pk=notice_id, user=user)
    if not own.exists():
        raise NotFound(what=f"notice #{notice_id} of yours")
    own.filter(read_at=None).update(read_at=now)

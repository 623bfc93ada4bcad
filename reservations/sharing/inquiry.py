"""A message from one User to the holder of a Reservation, as a Notice."""

import unicodedata
from datetime import datetime, timedelta

from django.db import transaction

from reservations.models import Notice, Reservation, User
from reservations.notifications.service import notify
from reservations.notifications.text.sharing_text import CannotAsk
from reservations.rules.errors import NotAllowed, NotFound
from reservations.rules.lifecycle import State
from reservations.rules.overstay_terms import is_gap
from reservations.rules.window import unix, whole_second
from telemetry.protocol.sentences import sentence

AGAIN_SECONDS = 3600
"""Time between two messages about one Reservation."""
MOST_A_DAY = 10
"""Messages that one User may send in 24 h, to all holders together."""


@transaction.atomic(durable=True)
def ask_holder(
    *, reservation_id: int, user: User, message: str, now: datetime
) -> Notice:
    """Send the holder of a live Reservation a message.

    Args:
        message: one line. The holder reads it with the sender's name.

    Raises:
        CannotAsk: an empty message, no holder to ask, or too many messages.
        NotAllowed: the User may not book here.
        NotFound.
    """
    at = whole_second(now)
    row = Reservation.objects.select_related("user").filter(pk=reservation_id).first()
    if row is None:
        raise NotFound(what=sentence("reservation #{pk}", pk=reservation_id))
    if not user.memberships.filter(active=True).exists():
        raise NotAllowed(act=sentence("write to holders: you are in no group"))
    # Serialised, so that the messages of one sender are counted correctly.
    User.objects.select_for_update(no_key=True).get(pk=user.pk)
    _check(row, user, message, at)
    told = notify(
        user=row.user,
        kind=Notice.Kind.ASKED,
        reservation=row,
        detail={"person": user.pk, "reason": message.strip()},
        now=at,
        key=f"{row.pk}:{user.pk}:{unix(at) // AGAIN_SECONDS}",
    )
    if told is None:
        raise CannotAsk(why=sentence("you wrote to them less than an hour ago"))
    return told


def _check(row: Reservation, user: User, message: str, now: datetime) -> None:
    sent = Notice.objects.filter(kind=Notice.Kind.ASKED, detail__person=user.pk)
    recent = sent.filter(told_at__gt=now - timedelta(seconds=AGAIN_SECONDS))
    why = ""
    if not any(unicodedata.category(char)[0] in "LNPS" for char in message):
        # Letters, numbers, punctuation and symbols. Zero-width spaces alone are no
        # message.
        why = sentence("write a message first")
    elif row.user_id == user.pk:
        why = sentence("the booking is yours")
    elif row.state not in State.live() or is_gap(row.start, row.booked_end):
        why = sentence("nobody holds these GPUs with it now")
    elif recent.filter(reservation=row).exists():
        why = sentence("you wrote to them less than an hour ago")
    elif sent.filter(told_at__gt=now - timedelta(days=1)).count() >= MOST_A_DAY:
        why = sentence("the limit is {most} messages in 24 h", most=MOST_A_DAY)
    if why:
        raise CannotAsk(why=why)

"""Messages to the terminals of a Reservation's users before its end.

They reach ssh sessions, terminals in JupyterLab and in the page, and every other login
of the user on the node, ten minutes and one minute before. The broker remembers which
were sent.
"""

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db.models import F

from placement.access.ssh_offers import OUTAGES
from placement.jobs.nodes.command_queue import new_nonce, send_user_message
from placement.protocol.end_notice import WARN_SECONDS, due_warning, remaining_time_text
from placement.protocol.ssh_access import ACCOUNT_NAME
from placement.protocol.user_messages import UserMessage
from reservations.models import Allocation, CoUser, User
from telemetry.live.broker_client import BROKER

KEY = "end.told."
KEY_SECONDS = 2 * max(WARN_SECONDS)
VALID_SECONDS = 30.0

logger = logging.getLogger(__name__)


def send_due(now: datetime) -> dict[str, int]:
    """Send the messages that are due. Return how many (a step of the tick)."""
    sent = 0
    ends: dict[tuple[int, str], datetime] = {}
    for number, node, end in _ending(now):
        ends[number, node] = max(end, ends.get((number, node), end))
    users = _users({number for number, _node in ends})
    for (number, node), end in ends.items():
        left_seconds = (end - now).total_seconds()
        step = due_warning(left_seconds, None)
        for name in users.get(number, ()) if step is not None else ():
            key = f"{KEY}{number}.{node}.{name}.{int(end.timestamp())}.{step}"
            if _first(key):
                text = message_text(number, node, left_seconds)
                sent += _send(node, name, text, now)
    return {"end_messages": sent}


def message_text(number: int, node: str, left_seconds: float) -> str:
    """Return the message.

    >>> message_text(17, "node-a", 600)
    'GPU Portal: reservation 17 on node-a ends in 10 min. Save your work, or extend it.'
    """
    left = remaining_time_text(left_seconds)
    return (
        f"GPU Portal: reservation {number} on {node} ends in {left}. Save your work, "
        "or extend it."
    )


def _ending(now: datetime) -> Iterable[tuple[int, str, datetime]]:
    soon = now + timedelta(seconds=max(WARN_SECONDS))
    running = Allocation.objects.filter(live=True, start__lte=now, end__gt=now)
    return (
        running.filter(
            end__lte=soon,
            # A gap was not booked, and its Job continues in the next one.
            reservation__booked_end__gt=F("reservation__start"),
        )
        .order_by("reservation_id")
        .values_list("reservation_id", "gpu__node__name", "end")
        .distinct()
    )


def _users(numbers: set[int]) -> dict[int, list[str]]:
    """Return the Unix names of owner and co-users, by Reservation."""
    if not numbers:
        return {}
    held = User.objects.filter(reservations__in=numbers, is_active=True)
    pairs = set(held.values_list("reservations__pk", "unix_user"))
    shared = CoUser.objects.sharing().filter(
        reservation__in=numbers, user__is_active=True
    )
    pairs |= set(shared.values_list("reservation_id", "user__unix_user"))
    found: dict[int, list[str]] = {}
    for number, name in sorted(pairs):
        if number in numbers and ACCOUNT_NAME.fullmatch(name):
            found.setdefault(number, []).append(name)
    return found


def _first(key: str) -> bool:
    """Return whether nobody has sent this message. During an outage: False."""
    try:
        return bool(BROKER.set(key, 1, nx=True, ex=KEY_SECONDS))
    except OUTAGES as error:
        logger.warning("a message before an end is not sent: %s", error)
        return False


def _send(node: str, name: str, text: str, now: datetime) -> bool:
    issued_at = now.timestamp()
    message = UserMessage(
        kind="tell_user",
        node=node,
        nonce=new_nonce(),
        issued_at=issued_at,
        expires_at=issued_at + VALID_SECONDS,
        unix_user=name,
        text=text,
    )
    return send_user_message(message)

"""Two requests on the demo lab's waitlist, made that morning.

Both want all of node-a beyond the flex horizon, which is more than a quota allows. They
have planned starts, one after the other, until flex may be booked so far ahead.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuportal.demo.lab import NODES
from reservations.models import AuditEntry, Membership, WaitingRequest


@dataclass(frozen=True)
class DemoRequest:
    """User, time of the request, length, and number of Gpus of node-a's class."""

    user: str
    count: int
    hours: int
    asked_hours_ago: float
    purpose: str


WAITS = (
    DemoRequest("luca", 4, 12, 6, "policy, all four GPUs"),
    DemoRequest("alice", 4, 11, 3, "language model, long run"),
)
FROM, UNTIL = timedelta(days=4), timedelta(days=8)


def write_waiting(
    members: Sequence[Membership], *, now: datetime
) -> Iterable[WaitingRequest]:
    """Write the requests. The first tick plans their starts."""
    by_login = {member.user.username: member for member in members}
    hour = now.replace(minute=0, second=0, microsecond=0)
    rows = WaitingRequest.objects.bulk_create(
        WaitingRequest(
            user=by_login[wait.user].user,
            membership=by_login[wait.user],
            count=wait.count,
            gpu_class=NODES[0].gpu_class,
            duration_seconds=wait.hours * 3600,
            earliest=hour + FROM,
            latest=hour + UNTIL,
            purpose=wait.purpose,
            created_at=now - timedelta(hours=wait.asked_hours_ago),
        )
        for wait in WAITS
    )
    AuditEntry.objects.bulk_create(
        AuditEntry(
            at=row.created_at,
            actor=row.user,
            verb="waiting.asked",
            subject=f"waiting:{row.pk}",
        )
        for row in rows
    )
    return rows

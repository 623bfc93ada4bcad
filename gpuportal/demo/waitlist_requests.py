"""Two requests on the demo lab's waitlist, as somebody might have asked that morning.

Both want all of node-a beyond the flex horizon, more than a quota has room for: they
hold planned starts, one behind the other, until flex may be booked so far ahead.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuportal.demo.lab import NODES
from reservations.models import AuditEntry, Membership, WaitingRequest


@dataclass(frozen=True)
class DemoRequest:
    """Who waits since when, for how long a run of how many Gpus of node-a's class."""

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
    """Write the requests; the first tick plans their starts."""
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

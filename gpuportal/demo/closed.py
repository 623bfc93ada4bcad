"""Closed time ahead in the demo lab: a night of maintenance, and two hours of a course.

It is after all bookings there, so that it displaces none.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from gpuportal.demo.lab import GROUPS, NODES
from reservations.models import Closure, Membership
from telemetry.models import Node

NIGHT, LESSON = timedelta(days=9), timedelta(days=10)


def write_closures(members: Sequence[Membership], *, now: datetime) -> list[Closure]:
    """Write both closures through the portal's services."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    nodes = {node.name: node for node in Node.objects.all()}
    taught = next(m.account for m in members if m.account.name == GROUPS[0].name)
    night, lesson = midnight + NIGHT, midnight + LESSON
    return Closure.objects.bulk_create(
        [
            Closure(
                kind=Closure.Kind.MAINTENANCE,
                scope=Closure.Scope.NODE,
                node=nodes[NODES[-1].name],
                start=night + timedelta(hours=2),
                end=night + timedelta(hours=6),
                reason="new power supplies",
                created_at=now,
            ),
            Closure(
                kind=Closure.Kind.TEACHING,
                scope=Closure.Scope.NODE,
                node=nodes[NODES[0].name],
                account=taught,
                start=lesson + timedelta(hours=13),
                end=lesson + timedelta(hours=15),
                reason="practical on convolutions",
                created_at=now,
            ),
        ]
    )

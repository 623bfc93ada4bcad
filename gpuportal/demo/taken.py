"""Flex bookings of the past fortnight that were taken by others: unserved requests.

Reports and replays need them: without competing requests there is nothing to share
fairly.
"""

import random
from collections.abc import Sequence
from datetime import datetime, timedelta

from gpuportal.demo.lab import NODES, PURPOSES
from gpuportal.demo.past_bookings import DemoGpu
from reservations.models import Allocation, LedgerEntry, Membership, Reservation
from reservations.rules.lifecycle import Kind, State

DAYS = 13
A_DAY = 3
HOURS = (3, 4, 6, 8)
NOTICE = timedelta(hours=14)


def write_taken(
    members: Sequence[Membership],
    gpus: Sequence[DemoGpu],
    *,
    now: datetime,
    chance: random.Random,
) -> list[Reservation]:
    """Write some wide flex bookings for each afternoon; all of them displaced."""
    wide = [gpu for gpu in gpus if gpu.node == NODES[0].name]
    noon = now.replace(hour=12, minute=0)
    rows, taken = [], []
    for day in range(1, DAYS + 1):
        for _ in range(A_DAY):
            start = noon - timedelta(days=day) + timedelta(hours=chance.randrange(8))
            some = chance.sample(wide, chance.choice((2, 2, 4)))
            end = start + timedelta(hours=chance.choice(HOURS))
            seconds = int((end - start).total_seconds())
            member = chance.choice(members)
            rows.append(
                Reservation(
                    user=member.user,
                    membership=member,
                    start=start,
                    end=end,
                    booked_end=end,
                    kind=Kind.FLEX,
                    state=State.DISPLACED,
                    cost_gpu_seconds=seconds * sum(gpu.weight for gpu in some),
                    purpose=chance.choice(PURPOSES),
                    created_at=start - timedelta(hours=chance.randrange(16, 60)),
                    ended_at=start - NOTICE,
                    decision={"rule": "demo", "text": "Made with the demo lab."},
                )
            )
            taken.append(some)
    Reservation.objects.bulk_create(rows)
    Allocation.objects.bulk_create(
        Allocation(
            reservation=row, gpu_id=gpu.pk, start=row.start, end=row.end, live=False
        )
        for row, some in zip(rows, taken, strict=True)
        for gpu in some
    )
    hold, release = LedgerEntry.Kind.HOLD, LedgerEntry.Kind.RELEASE
    LedgerEntry.objects.bulk_create(
        LedgerEntry(
            membership_id=row.membership_id,
            reservation=row,
            kind=kind,
            gpu_seconds=sign * row.cost_gpu_seconds,
            at=at,
            reason=why,
        )
        for row in rows
        for kind, sign, at, why in (
            (hold, 1, row.created_at, "booked flex"),
            (release, -1, row.start - NOTICE, "displaced: full refund"),
        )
    )
    return rows

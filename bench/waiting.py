"""Measure a look at a crowded waitlist.

    python bench/waiting.py [--waiting 60] [--bookings 3500]

154 GPUs of four classes on 20 nodes, 300 people of 15 groups. Every GPU is held for a
week without gaps, by firm bookings inside the freeze and half of them flex after it.
Each person waits for one to four GPUs. One look is measured in CPU seconds when nobody
can be placed (the common case), and after one booking was given back. The database is a
scratch SQLite, or that of DATABASE_URL.
"""

import argparse
import random
import shutil
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

from bench.rig import booking_lab

GPUS, PEOPLE, NODES, GROUPS = 154, 300, 20, 15
HOUR = timedelta(hours=1)
CLASSES = (("11 GB", 11, 1), ("24 GB", 24, 3), ("48 GB", 48, 6), ("80 GB", 80, 10))


def main() -> None:
    """Make the lab, look, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=60)
    parser.add_argument("--bookings", type=int, default=3500)
    asked = parser.parse_args()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, booking_lab.VAR, ignore_errors=True)
        broker = booking_lab.start_broker()
        stack.callback(broker.wait, 10)
        stack.callback(broker.terminate)
        measure(asked.waiting, asked.bookings)


def measure(waiting: int, bookings: int) -> None:
    """Print a line for each measurement."""
    now = datetime.now(UTC).replace(minute=20, second=0, microsecond=0)
    make_lab(waiting, bookings, now)
    from django.db import connection

    from reservations.booking.release import cancel
    from reservations.models import Reservation, WaitlistLook
    from reservations.store.booking_facts import site_policy
    from reservations.waitlist import scheduler

    policy = site_policy()
    print(f"{GPUS} GPUs, {bookings} bookings, {waiting} wait, {connection.vendor}")
    scheduler.BUSY_SECONDS = 120.0
    told: list[dict[str, int]] = []
    first = cpu_seconds(lambda: told.append(scheduler.place(now, policy)))
    each = first / max(told[0]["placed"], 1)
    print(f"  {told[0]['placed']} placed at first, {each:.2f} s CPU each")
    took = []
    for number in range(1, 6):
        WaitlistLook.objects.update(looked_at=None)
        at = now + timedelta(seconds=number)
        took.append(cpu_seconds(lambda at=at: scheduler.place(at, policy)))
    print(f"  a look that places nobody: {statistics.median(took):.2f} s CPU")
    took = [cpu_seconds(lambda: scheduler.place(at, policy)) for _ in range(5)]
    print(f"  nothing changed: {1000 * statistics.median(took):.1f} ms CPU")
    took = []
    for number in range(1, 6):
        at = now + timedelta(minutes=number)
        row = Reservation.objects.live().filter(start__gt=at + 14 * HOUR).first()
        cancel(reservation_id=row.pk, user=row.user, now=at)
        took.append(cpu_seconds(lambda a=at: scheduler.place(a, policy)))
    print(f"  a look after time came free: {statistics.median(took):.2f} s CPU")


def cpu_seconds(call: Callable[[], object]) -> float:
    """Return this process's CPU time of a call."""
    begun = time.process_time()
    call()
    return time.process_time() - begun


def make_lab(waiting: int, bookings: int, now: datetime) -> None:
    """Write people, Gpus, bookings without gaps, and waiting requests."""
    booking_lab.USERS = 1
    booking_lab.make_lab()
    from reservations.models import Account, Membership, SitePolicy, User
    from telemetry.models import Gpu, Node, Pool

    chance = random.Random(4)
    policy = SitePolicy.current()
    policy.quota_gpu_seconds = 40 * 3600
    policy.gpus_at_once, policy.live_reservations, policy.future_flex = 4, 40, 40
    policy.waiting_requests = 100
    policy.firm_horizon_seconds = 14 * 24 * 3600
    policy.longest_seconds = 24 * 3600
    policy.save()
    Gpu.objects.all().delete()
    pools = [Pool.objects.create(gpu_class=n, weight=w) for n, _gib, w in CLASSES]
    nodes = [Node.objects.create(name=f"w{n}", simulated=True) for n in range(NODES)]
    gpus = []
    for number in range(GPUS):
        node = number % NODES
        gib = CLASSES[node % 4][1]
        gpus.append(
            Gpu.objects.create(
                uuid=f"GPU-wait-{number}",
                node=nodes[node],
                pool=pools[node % 4],
                index=number // NODES,
                name="bench",
                memory_total_bytes=gib * 2**30,
            )
        )
    root = Account.objects.get(name="institute")
    groups = [Account.objects.create(name=f"g{n}", parent=root) for n in range(GROUPS)]
    members = []
    for number in range(PEOPLE):
        user = User.objects.create_user(f"waits{number}")
        group = groups[number % GROUPS]
        members.append(Membership.objects.create(user=user, account=group))
    _book(gpus, members, bookings, now, chance)
    _wait(members, waiting, now, chance)


def _book(gpus, members, bookings, now, chance) -> None:  # type: ignore[no-untyped-def]
    """Hold every Gpu without gaps, and give everybody past bookings."""
    from reservations.models import Allocation, LedgerEntry, Reservation
    from reservations.rules.lifecycle import Kind, State

    hour = now.replace(minute=0)
    each = bookings // GPUS
    rows, allocations = [], []
    for gpu in gpus:
        begin = hour - chance.randrange(4) * HOUR
        for _ in range(each):
            end = begin + chance.choice((4, 6, 8, 8, 10)) * HOUR
            member = chance.choice(members)
            late = begin > now + 12 * HOUR
            kind = Kind.FLEX if late and chance.random() < 0.5 else Kind.FIRM
            state = State.CONFIRMED if begin > now else State.ACTIVE
            row = Reservation(
                user=member.user,
                membership=member,
                kind=kind,
                state=state,
                start=begin,
                end=end,
                booked_end=end,
                cost_gpu_seconds=gpu.pool.weight * int((end - begin).total_seconds()),
                created_at=now - chance.randrange(1, 99) * HOUR,
            )
            rows.append(row)
            allocations.append(
                Allocation(
                    gpu=gpu, start=begin, end=end, live=True, weight=gpu.pool.weight
                )
            )
            begin = end
    Reservation.objects.bulk_create(rows)
    for row, allocation in zip(rows, allocations, strict=True):
        allocation.reservation = row
    Allocation.objects.bulk_create(allocations)
    LedgerEntry.objects.bulk_create(
        LedgerEntry(
            membership=chance.choice(members),
            kind="charge",
            reason="bench",
            gpu_seconds=chance.randrange(3600, 10**6),
            reservation=rows[0],
            at=now - chance.randrange(1, 400) * HOUR,
        )
        for _ in range(3000)
    )


def _wait(members, waiting, now, chance) -> None:  # type: ignore[no-untyped-def]
    """Make everybody wait for something."""
    from reservations.models import WaitingRequest

    WaitingRequest.objects.bulk_create(
        WaitingRequest(
            user=member.user,
            membership=member,
            count=chance.choice((1, 1, 1, 2, 2, 4)),
            min_memory_bytes=chance.choice((0, 0, 20, 40, 79)) * 2**30,
            duration_seconds=chance.choice((2, 4, 8, 8, 12, 20)) * 3600,
            earliest=now + chance.choice((0, 0, 6, 24)) * HOUR,
            latest=now + chance.choice((40, 72, 120, 160)) * HOUR,
            created_at=now - chance.randrange(1, 200) * timedelta(minutes=10),
            any_notice=chance.random() < 0.3,
        )
        for member in (members[n % PEOPLE] for n in range(waiting))
    )


if __name__ == "__main__":
    main()

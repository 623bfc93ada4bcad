"""Plain functions that make rows with sensible defaults."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone

from reservations.models import Account, Allocation, Membership, Reservation, User
from reservations.rules.lifecycle import Kind, State
from telemetry.models import Gpu, Node, Pool

GIB = 2**30
PASSWORD = "correct horse battery staple"
_number = itertools.count(1)


def make_user(username: str = "", **fields: object) -> User:
    """Make a User whose password is ``PASSWORD``."""
    username = username or f"user{next(_number)}"
    fields.setdefault("display_name", username.capitalize())
    return User.objects.create_user(username, password=PASSWORD, **fields)


def make_account(name: str = "", **fields: object) -> Account:
    """Return the Account of that name. It is made if it is missing."""
    name = name or f"account{next(_number)}"
    fields.setdefault("title", name.capitalize())
    return Account.objects.get_or_create(name=name, defaults=fields)[0]


def make_membership(user: User, account: Account | str, **fields: object) -> Membership:
    """Make a User a member of an Account (by name or row)."""
    if isinstance(account, str):
        account = make_account(account)
    return Membership.objects.create(user=user, account=account, **fields)


def make_node(name: str = "", **fields: object) -> Node:
    """Make a simulated Node, seen just now."""
    fields.setdefault("simulated", True)
    fields.setdefault("last_seen_at", timezone.now())
    return Node.objects.create(name=name or f"node{next(_number)}", **fields)


def make_pool(gpu_class: str = "NVIDIA A100 80GB", **fields: object) -> Pool:
    """Return the Pool of a Gpu class. It is made if it is missing."""
    fields.setdefault("weight", 10)
    return Pool.objects.get_or_create(gpu_class=gpu_class, defaults=fields)[0]


def make_gpu(node: Node | None = None, **fields: Any) -> Gpu:
    """Make one Gpu of 80 GiB on a Node, with the next free index."""
    return make_gpus(1, node, **fields)[0]


def make_gpus(
    count: int, node: Node | None = None, index: int | None = None, **fields: object
) -> list[Gpu]:
    """Make several Gpus of 80 GiB on one Node, from an index or the next free one."""
    node = node or make_node()
    first = node.gpus.count() if index is None else index
    given: dict[str, Any] = {
        "pool": make_pool(),
        "name": "NVIDIA A100 80GB PCIe",
        "memory_total_bytes": 80 * GIB,
        "power_limit_watts": 300.0,
        "slowdown_celsius": 90.0,
        **fields,
    }
    return Gpu.objects.bulk_create(
        Gpu(node=node, index=each, **{"uuid": f"GPU-{node.name}-{each}", **given})
        for each in range(first, first + count)
    )


def at(hour: int, minute: int = 0, day: int = 2) -> datetime:
    """Return an instant of March 2026, in UTC (the second is a Monday)."""
    return datetime(2026, 3, day, hour, minute, tzinfo=UTC)


def make_reservation(
    user: User,
    gpus: list[Gpu] | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    **fields: object,
) -> Reservation:
    """Write a Reservation and its Allocations without the rules and the ledger.

    For tests with existing rows. The portal itself uses
    ``reservations.booking.service.book``.
    """
    gpus = [make_gpu()] if gpus is None else gpus
    start = start or timezone.now()
    end = end or start + timedelta(hours=1)
    fields.setdefault("membership", user.memberships.first())
    fields.setdefault("kind", Kind.FIRM)
    fields.setdefault("state", State.CONFIRMED)
    fields.setdefault("booked_end", end)
    seconds = int((end - start).total_seconds())
    fields.setdefault(
        "cost_gpu_seconds", sum(gpu.pool.weight * seconds for gpu in gpus)
    )
    made = Reservation.objects.create(user=user, start=start, end=end, **fields)
    for gpu in gpus:
        Allocation.objects.create(
            reservation=made,
            gpu=gpu,
            start=start,
            end=end,
            live=made.state in State.live(),
        )
    return made

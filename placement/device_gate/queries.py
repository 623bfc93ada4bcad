"""The grants of one node, from the calendar."""

from datetime import datetime

from placement.protocol.device_grants import MOST_HOLDERS, HolderGrant
from reservations.presence.holders import HoldingInfo, current_holdings
from telemetry.models import Gpu, Node


def grants_of(node: Node, now: datetime) -> tuple[HolderGrant, ...]:
    """Return what the reservations whose window runs now grant on a node.

    By the window and the live allocations, so extension, swap, displacement, release
    and release without check-in all change it. A person without a Unix name counts by
    login, as for processes (``reservations.presence.attribution``).
    """
    uuids = dict(Gpu.objects.filter(node=node).values_list("pk", "uuid"))
    by_reservation: dict[tuple[int, float], tuple[HoldingInfo, list[str]]] = {}
    for gpu_id, holding in current_holdings(now).items():
        if gpu_id in uuids:
            key = holding.reservation_pk, holding.end.timestamp()
            by_reservation.setdefault(key, (holding, []))[1].append(uuids[gpu_id])
    return tuple(
        HolderGrant(users_of(holding), tuple(sorted(found)), holding.end.timestamp())
        for _, (holding, found) in sorted(by_reservation.items())
    )


def users_of(holding: HoldingInfo) -> tuple[str, ...]:
    """Return the Unix names of a reservation's owner and co-users."""
    owner = holding.unix_user or holding.username
    others = {sign for sign in holding.co_users if isinstance(sign, str)} - {owner}
    return (owner, *sorted(others))[:MOST_HOLDERS]

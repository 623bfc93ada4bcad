"""Retire a node, if nothing is booked on it."""

from datetime import datetime

from django.db import transaction

from reservations.models import Allocation, User
from reservations.store.audit_log import audit_act
from telemetry.inventory import enrollment
from telemetry.models import Gpu, Node
from telemetry.protocol.errors import NodeHeld, NodeUnknown


@transaction.atomic(durable=True)
def retire_node(*, name: str, actor: User | None, reason: str, now: datetime) -> int:
    """Remove a Node from the board and the calendar. Return its number of Gpus.

    Its token is void at once. Past bookings, measurements and charges stay.

    Args:
        actor: None: a person who may run manage.py.

    Raises:
        NodeUnknown: no node with this name is in service.
        NodeHeld: its Gpus are booked, now or later.
    """
    node = Node.objects.in_service().select_for_update().filter(name=name).first()
    if node is None:
        raise NodeUnknown(node=name)
    # A booking locks the same rows.
    gpus = list(Gpu.objects.select_for_update().filter(node=node).order_by("pk"))
    held = (
        Allocation.objects.filter(gpu__in=gpus, live=True, end__gt=now)
        .order_by("reservation_id")
        .values_list("reservation_id", flat=True)
        .distinct()
    )
    if held:
        raise NodeHeld(node=name, reservations=list(held))
    count = enrollment.retire_node(node_id=node.pk)
    audit_act(
        verb="node.retired",
        subject=f"node:{node.pk}",
        actor=actor,
        now=now,
        reason=reason,
        name=name,
        gpus=count,
    )
    return count

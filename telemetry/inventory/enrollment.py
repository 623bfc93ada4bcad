"""Enrol nodes, and record the facts about them that are not in their roster."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from telemetry.models import Gpu, Node
from telemetry.protocol.errors import NodeExists, NodeUnknown
from telemetry.protocol.hardware import NODE_NAME


@transaction.atomic(durable=True)
def enroll_node(*, name: str, simulated: bool, now: datetime) -> tuple[Node, str]:
    """Make a node and its token in a transaction. `add_node` has the errors."""
    return add_node(name=name, simulated=simulated, now=now)


@transaction.atomic(durable=True)
def renew_token(*, name: str) -> tuple[Node, str]:
    """Replace a node's token in a transaction. `replace_token` has the errors."""
    return replace_token(name=name)


def add_node(*, name: str, simulated: bool, now: datetime) -> tuple[Node, str]:
    """Make a node and its token. Return the token. Only its hash is stored.

    Runs in the caller's transaction.

    Raises:
        ValidationError: the name cannot be part of a stream or a file name.
        NodeExists: a node of that name is enrolled.
    """
    if not NODE_NAME.fullmatch(name):
        raise ValidationError(
            f"{name!r} is not a valid node name. Use at most 63 letters, digits, - "
            f"and _"
        )
    node = Node(name=name, simulated=simulated, enrolled_at=now)
    token = node.new_token()
    try:
        with transaction.atomic():
            node.save()
    except IntegrityError as error:
        raise NodeExists(node=name) from error
    return node, token


def replace_token(*, name: str) -> tuple[Node, str]:
    """Give a node a new token. The old one becomes invalid at once.

    Runs in the caller's transaction. A node that was retired comes back, with the Gpus
    that were retired with it. A Gpu that was retired before stays retired.

    Raises:
        NodeUnknown: no such node, or Slurm gives out its GPUs.
    """
    nodes = Node.objects.select_for_update().filter(engine=Node.Engine.PORTAL)
    node = nodes.filter(name=name).first()
    if node is None:
        raise NodeUnknown(node=name)
    token = node.new_token()
    if node.retired:
        Gpu.objects.filter(node=node, retired_with_node=True).update(
            retired=False, retired_with_node=False
        )
    node.retired = False
    node.save(update_fields=["token_hash", "retired"])
    return node, token


def retire_node(*, node_id: int) -> int:
    """Retire a Node and its Gpus. Return how many Gpus it had.

    Runs in the caller's transaction. The rows stay, because bookings and measurements
    refer to them.
    """
    Node.objects.filter(pk=node_id).update(retired=True)
    return Gpu.objects.filter(node_id=node_id, retired=False).update(
        retired=True, retired_with_node=True
    )


@transaction.atomic(durable=True)
def mark_seen(*, seen: Mapping[str, datetime]) -> None:
    """Record when each node was last heard, by the server's clock. Never goes back."""
    nodes = Node.objects.select_for_update().filter(name__in=seen).order_by("pk")
    newer = []
    for node in nodes:
        at = seen[node.name]
        if node.last_seen_at is None or node.last_seen_at < at:
            node.last_seen_at = at
            newer.append(node)
    Node.objects.bulk_update(newer, ["last_seen_at"], batch_size=200)


def mark_channel(*, name: str, now: datetime) -> None:
    """Record that a node used its token over HTTPS, by the server's clock."""
    Node.objects.filter(name=name).update(channel_at=now)


def record_channel(*, name: str, state: str, detail: str) -> bool:
    """Store a node's report of its HTTPS channel. Return whether it changed
    anything."""
    row = Node.objects.filter(name=name)
    changed = row.exclude(channel_state=state, channel_detail=detail)
    return bool(changed.update(channel_state=state, channel_detail=detail))


@transaction.atomic(durable=True)
def set_lost(*, gpu_ids: Iterable[int], lost: bool) -> int:
    """Store whether the driver answers for these Gpus. Return how many changed."""
    return Gpu.objects.filter(pk__in=list(gpu_ids), lost=not lost).update(lost=lost)

"""Send each gated node its whole state, and store what nodes report.

Each tick derives the state from the database, so a broker that forgets loses nothing.
A node gets an order when its state has changed, and every ten seconds. A node that is
silent gets none: its queue would only grow, and its kernel ends the grants.
"""

import hashlib
import logging
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q

from placement.device_gate.queries import grants_of
from placement.jobs.nodes.command_queue import ORDER_SECONDS, send_gate_order
from placement.protocol.device_grants import (
    GateMode,
    GateOrder,
    parse_gate_fact,
)
from placement.protocol.node_refusals import FactRefused
from reservations.models import SitePolicy
from telemetry.inventory.gate_report import record_gate
from telemetry.models import Node
from telemetry.rules.isolated_steps import RowSteps

AGAIN = timedelta(seconds=10)
HEARD_WITHIN = timedelta(seconds=60)
"""A node that was not heard for so long gets no orders."""
MOST_GRACE_SECONDS = 3600.0

logger = logging.getLogger(__name__)


def send_due(now: datetime) -> dict[str, int]:
    """Send every order that is due. Return how many there were."""
    gated = ~Q(gate_mode=Node.GateMode.OPEN)
    not_open_yet = ~Q(gate_state__in=("", Node.GateState.OPEN))
    rows = (
        Node.objects.in_service()
        .filter(gated | not_open_yet, last_seen_at__gt=now - HEARD_WITHIN)
        .order_by("pk")
        .values_list("pk", flat=True)
    )
    return {"gates_told": RowSteps(logger, "node")(list(rows), send_if_due, now)}


def send_if_due(pk: int, now: datetime) -> bool:
    """Send one node its state if it changed, or was sent long ago. Return whether an
    order was sent."""
    order = _next_order(pk, now)
    if order is None:
        return False
    if send_gate_order(order):
        return True
    Node.objects.filter(pk=pk).update(gate_sent_at=None)
    return False


@transaction.atomic(durable=True)
def _next_order(pk: int, now: datetime) -> GateOrder | None:
    """Return the order that is due, and note it as sent; None: none is due.

    The row's lock makes the numbers of two ticks follow the states that they have read.
    A number is never lower than the clock in milliseconds, so that a portal that was
    restored from a backup does not repeat numbers.
    """
    node = Node.objects.select_for_update().get(pk=pk)
    issued_at = now.timestamp()
    order = GateOrder(
        kind="gate",
        node=node.name,
        sequence=0,
        mode=GateMode(node.gate_mode),
        issued_at=0.0,
        expires_at=0.0,
        grace_seconds=min(
            float(SitePolicy.current().stop_grace_seconds), MOST_GRACE_SECONDS
        ),
        grants=() if node.gate_mode == GateMode.OPEN else grants_of(node, now),
    )
    digest = hashlib.sha256(order.payload().encode()).hexdigest()
    recent = node.gate_sent_at is not None and now - node.gate_sent_at < AGAIN
    if recent and digest == node.gate_digest:
        return None
    node.gate_sequence = max(node.gate_sequence + 1, round(issued_at * 1000))
    node.gate_digest, node.gate_sent_at = digest, now
    node.save(update_fields=["gate_sequence", "gate_digest", "gate_sent_at"])
    return replace(
        order,
        sequence=node.gate_sequence,
        issued_at=issued_at,
        expires_at=issued_at + ORDER_SECONDS,
    )


def record_fact(node_name: str, fact: dict[str, Any], now: datetime) -> bool:
    """Store one report of a node's gate. Return whether it changed anything."""
    try:
        said = parse_gate_fact(fact)
    except FactRefused as refusal:
        logger.warning("fact of %s refused: %s", node_name, refusal)
        return False
    return record_gate(
        name=node_name,
        mode=said.mode.value,
        state=said.state.value,
        reason=said.reason,
        report={
            "refusals": [[one.uid, one.user, one.count] for one in said.refusals],
            "uncovered": list(said.uncovered),
            "unknown": list(said.unknown),
        },
        uncovered=said.uncovered,
        now=now,
    )

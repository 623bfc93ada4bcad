"""Reports of a node about its device gate: stored, judged, and shown to admins."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction

from telemetry.alerts.service import close_alert, open_alert
from telemetry.models import Node
from telemetry.rules.alert_rules import GATE, GATE_BYPASS


@transaction.atomic(durable=True)
def record_gate(
    *,
    name: str,
    mode: str,
    state: str,
    reason: str,
    report: Mapping[str, Any],
    uncovered: Sequence[str],
    now: datetime,
) -> bool:
    """Store a report. Return whether it changed anything.

    A report about another mode than the one that is set now is dropped: the node has
    not read the newest order yet.

    Args:
        name: of the node.
        mode: of the order that the node follows.
        report: what the node's page shows beside the state.
        uncovered: the people that the gate cannot stop.
    """
    node = Node.objects.in_service().select_for_update().filter(name=name).first()
    if node is None or node.gate_mode != mode:
        return False
    told = {"gate_state": state, "gate_reason": reason, "gate_report": dict(report)}
    changed = [key for key, value in told.items() if getattr(node, key) != value]
    for key in changed:
        setattr(node, key, told[key])
    if changed:
        node.save(update_fields=changed)
    wanted = mode != Node.GateMode.OPEN
    broken = (Node.GateState.FAILED, Node.GateState.UNAVAILABLE)
    _judge(node, GATE, state in broken, {"reason": reason}, now)
    detail = {"reason": ", ".join(uncovered)}
    _judge(node, GATE_BYPASS, wanted and bool(uncovered), detail, now)
    return bool(changed)


def shown_report(node: Node, *, to_admin: bool) -> dict[str, Any] | None:
    """Return the report that the node's page shows.

    None: the node has no gate, or the reader is no admin. Only an admin may know the
    names of people in it.
    """
    if node.gate == Node.GateMode.OPEN or not to_admin:
        return None
    return {"refusals": [], **node.gate_report}


def _judge(
    node: Node, rule: str, holds: bool, detail: Mapping[str, Any], now: datetime
) -> None:
    if holds:
        open_alert(rule=rule, node_id=node.pk, now=now, detail=detail)
    else:
        close_alert(rule=rule, node_id=node.pk, now=now)

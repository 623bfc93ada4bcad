"""The last order for the gate, in the node's folder, so that it survives a restart."""

from __future__ import annotations

from pathlib import Path

from placement.agent.job_folder import read_json, write_json
from placement.protocol.device_grants import GateOrder, parse_gate_order
from placement.protocol.node_refusals import OrderRefused

NAME = "gate.json"


def read_order(node_dir: Path) -> GateOrder | None:
    """Return the last order that was taken; None: there was none, or half of one."""
    payload = read_json(node_dir / NAME).get("payload")
    if not isinstance(payload, str):
        return None
    try:
        return parse_gate_order(payload)
    except OrderRefused:
        return None


def keep_order(node_dir: Path, order: GateOrder, payload: str) -> None:
    """Store an order that the desk has checked.

    Raises:
        OrderRefused: ``replayed``, it is not newer than the last one.
    """
    known = read_order(node_dir)
    if known is not None and order.sequence <= known.sequence:
        raise OrderRefused(
            "replayed",
            f"order {order.sequence} is not newer than {known.sequence}",
        )
    node_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
    write_json(node_dir / NAME, {"payload": payload})

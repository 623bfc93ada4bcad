"""How the holder of a Reservation reaches its GPUs."""

from collections.abc import Iterable
from dataclasses import dataclass

from placement.access.ssh_authority import reservation_host
from placement.access.ssh_offers import offering_nodes
from reservations.models import Allocation, User
from telemetry.models import Node


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """The GPUs that a Reservation holds on one node, and the way to them."""

    node: str
    indices: str
    """As nvidia-smi numbers them: "0, 3"."""
    visible_devices: str
    """Value for CUDA_VISIBLE_DEVICES with CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    ssh: str
    """The command that logs in; "" if the site does not let this User in."""
    ssh_needs_account: bool
    """Users may log in to the node, but this one has no Unix account there."""
    tunnel_host: str
    """Host of ssh through the portal; "": the node offers none now, or the
    user has no Unix account."""
    account: str
    """Name of the user on the node, for ssh through the portal."""
    scripts: bool
    """Whether own scripts may run there, because jobs are kept apart."""


def node_access(
    allocations: Iterable[Allocation], user: User
) -> tuple[NodeAccess, ...]:
    """Return the way to the GPUs, node by node.

    Args:
        allocations: with ``gpu__node`` loaded.
        user: the person who would log in.
    """
    allocations = list(allocations)
    offering = offering_nodes(sorted({one.gpu.node.name for one in allocations}))
    nodes: dict[int, tuple[Node, list[Allocation]]] = {}
    for one in allocations:
        nodes.setdefault(one.gpu.node_id, (one.gpu.node, []))[1].append(one)
    found = []
    for node, rows in nodes.values():
        gpus = sorted((one.gpu for one in rows), key=lambda gpu: (gpu.index, gpu.uuid))
        # CUDA knows a MIG instance by its UUID only.
        names = [gpu.uuid if gpu.mig else str(gpu.index) for gpu in gpus]
        account = user.unix_user
        found.append(
            NodeAccess(
                node=node.name,
                indices=", ".join(str(gpu.index) for gpu in gpus),
                visible_devices=",".join(names),
                ssh=f"ssh {account}@{node.ssh_address}"
                if node.ssh_address and account
                else "",
                ssh_needs_account=not account
                and (bool(node.ssh_address) or node.name in offering),
                tunnel_host=reservation_host(rows[0].reservation_id, node.name)
                if account and node.name in offering
                else "",
                account=account,
                scripts=node.isolation != Node.Isolation.NONE,
            )
        )
    return tuple(sorted(found, key=lambda each: each.node))

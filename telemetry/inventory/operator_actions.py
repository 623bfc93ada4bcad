"""The operator's actions on machines: pools, service, draining, replacement.

They run in the caller's transaction. The caller writes the audit rows.
"""

from collections.abc import Collection, Mapping

from telemetry.models import Gpu, Node, Pool

Change = tuple[object, object]
SWITCHES = ("maintenance", "draining")


def set_gpus(
    *, gpu_ids: Collection[int], fields: Mapping[str, object]
) -> dict[int, dict[str, Change]]:
    """Set the pool or a switch of Gpus. Return the changes by Gpu: (before, after).

    Raises:
        ValueError: the operator may not set this field.
    """
    allowed = {*SWITCHES, "pool_id"}
    if unknown := sorted(set(fields) - allowed):
        raise ValueError(f"not the operator's to set: {unknown}")
    rows = Gpu.objects.select_for_update().filter(pk__in=gpu_ids, retired=False)
    found = {}
    for gpu in rows.order_by("pk"):
        changed = {
            name: (getattr(gpu, name), value)
            for name, value in fields.items()
            if getattr(gpu, name) != value
        }
        if changed:
            Gpu.objects.filter(pk=gpu.pk).update(
                **{name: after for name, (_before, after) in changed.items()}
            )
            found[gpu.pk] = changed
    return found


def set_node_draining(*, node_id: int, draining: bool) -> bool:
    """Drain a Node, or end the drain. Return False if nothing changed."""
    rows = Node.objects.filter(pk=node_id, draining=not draining)
    return rows.update(draining=draining) == 1


def set_node_gate(*, node_id: int, mode: str) -> str:
    """Set the mode of a Node's device gate. Return the previous one.

    The next tick of placement sends it to the node.

    Raises:
        ValueError: there is no such mode.
    """
    before = Node.objects.select_for_update().get(pk=node_id).gate_mode
    if mode not in Node.GateMode.values:
        raise ValueError(f"{mode!r} is no mode of a device gate")
    Node.objects.filter(pk=node_id).update(gate_mode=mode)
    return before


def set_weight(*, pool_id: int, weight: int) -> int:
    """Set what a second of a Pool's Gpu costs from now on. Return the previous
    weight."""
    before = Pool.objects.select_for_update().get(pk=pool_id).weight
    Pool.objects.filter(pk=pool_id).update(weight=weight)
    return before


def make_pool(*, gpu_class: str, weight: int) -> Pool:
    """Make a Pool that Gpus can be put into."""
    return Pool.objects.create(gpu_class=gpu_class, weight=weight)


def set_replaced(*, gpu_id: int, by_id: int) -> None:
    """Record which Gpu replaced which. The old one takes no new bookings."""
    Gpu.objects.filter(pk=gpu_id).update(replaced_by_id=by_id, draining=True)


def retire(*, gpu_ids: Collection[int]) -> int:
    """Retire Gpus. Their history stays."""
    return Gpu.objects.filter(pk__in=gpu_ids, retired=False).update(retired=True)

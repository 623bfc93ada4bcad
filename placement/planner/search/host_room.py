"""What a Plan keeps outside of its Gpus, and whether its nodes have room for that.

With offload the memory of a node holds optimizer state and gradients, and the weights
where they are offloaded too. The host steps fp32 copies: where the precision has no
master copy, it keeps one of what it steps. So mixed precision with Adam takes 14 bytes
per trained parameter, as ZeRO-Offload says (arXiv:2101.06840, section 4.1: gradients 2,
fp32 parameters 4, momentum 4, variance 4). On a drive the same lies in files
(ZeRO-Infinity, arXiv:2104.07857). Pinned buffers are two of the largest layer for each
copy of the model that is computed. All ranks of a node add up.

What other running jobs hold is already missing from the free bytes of a node. Unknown
free bytes refuse nothing; the Plan then says that they are unknown.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from placement.planner.memory.parameter_states import (
    gradient_bytes,
    layer_elements,
    optimizer_bytes,
    parameter_bytes,
    trained_elements,
    widths,
)
from placement.planner.model.sharding import Sharding
from placement.planner.model.spec import ModelSpec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.humanize import either, gib
from placement.planner.values.plan import MOST_NAMED, Plan
from placement.planner.values.workload import Workload
from telemetry.protocol.sentences import sentence

PINNED_LAYERS = 2
"""Layers that are on the way to or from a Gpu at a time."""


@dataclass(frozen=True, slots=True)
class HostNeed:
    """Bytes that one node keeps outside of its Gpus."""

    memory_bytes: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class HostRoom:
    """Bytes that a Plan may take of each node; None: unknown."""

    memory_bytes: int | None = None
    disk_bytes: int | None = None

    def fits(self, need: HostNeed) -> bool:
        """Return whether nothing that is known is too small."""
        return (
            self.memory_bytes is None or need.memory_bytes <= self.memory_bytes
        ) and (self.disk_bytes is None or need.disk_bytes <= self.disk_bytes)


def host_room(offers: Iterable[GpuOffer], limit_bytes: int | None = None) -> HostRoom:
    """Return the least that is known to be free on a node of some Gpus.

    Args:
        limit_bytes: what the site allows of a node's memory; None: all that is free.
    """
    memory = {limit_bytes} if limit_bytes is not None else set()
    disk = set()
    for offer in offers:
        if offer.host_free_bytes is not None:
            memory.add(offer.host_free_bytes)
        if offer.disk_free_bytes is not None:
            disk.add(offer.disk_free_bytes)
    return HostRoom(min(memory, default=None), min(disk, default=None))


@dataclass(frozen=True, slots=True)
class OffloadedState:
    """Bytes that one whole copy of a model keeps off its Gpus."""

    state_bytes: int
    pinned_bytes: int
    in_memory: bool

    def need(self, copies: float, computed: float) -> HostNeed:
        """Return what a node keeps for its ranks.

        Args:
            copies: whole optimizer states that its ranks hold together.
            computed: whole models that they compute, whose layers pass pinned buffers.
        """
        state, pinned = (
            int(self.state_bytes * copies),
            int(self.pinned_bytes * computed),
        )
        return HostNeed(state + pinned) if self.in_memory else HostNeed(pinned, state)


def offloaded_state(spec: ModelSpec, workload: Workload) -> OffloadedState:
    """Return what a workload that offloads keeps off its Gpus."""
    layers = spec.layers
    width = widths(workload)
    kept = sum(
        optimizer_bytes(one, workload) + gradient_bytes(one, workload) for one in layers
    )
    if workload.offload_parameters:
        kept += sum(parameter_bytes(one, workload) for one in layers)
    elif not width.master:
        kept += int(width.parameter * sum(trained_elements(one) for one in layers))
    largest = max(
        max(parameter_bytes(one, workload), gradient_bytes(one, workload))
        for one in layers
    )
    return OffloadedState(kept, PINNED_LAYERS * largest, workload.offload == "cpu")


def rank_parts(spec: ModelSpec, sharding: Sharding) -> tuple[float, float]:
    """Return the part of the optimizer state that a rank holds, and the part of the
    model that it computes."""
    pieces = sharding.chunks or ((sharding.first_layer, sharding.last_layer),)
    computed = 1 / sharding.tensor_degree
    if pieces != ((0, None),):
        sizes = [layer_elements(one) for one in spec.layers]
        own = sum(sum(sizes[first:last]) for first, last in pieces)
        computed *= own / (sum(sizes) or 1)
    if sharding.share_ratio is not None:
        return computed * sharding.share_ratio, computed
    return computed / (sharding.shard_degree if sharding.stage else 1), computed


def needs_by_node(
    spec: ModelSpec, workload: Workload, ranks: Sequence[tuple[GpuOffer, Sharding]]
) -> dict[str, HostNeed]:
    """Return what each node of a Plan keeps outside of its Gpus; {}: nothing."""
    if workload.offload == "none":
        return {}
    parts = {one: rank_parts(spec, one) for one in {one for _, one in ranks}}
    sums: dict[str, tuple[float, float]] = {}
    for offer, sharding in ranks:
        copies, computed = sums.get(offer.node, (0.0, 0.0))
        held, run = parts[sharding]
        sums[offer.node] = (copies + held, computed + run)
    state = offloaded_state(spec, workload)
    return {
        node: state.need(round(copies, 9), round(computed, 9))
        for node, (copies, computed) in sums.items()
    }


def fullest_node(needs: Mapping[str, HostNeed]) -> tuple[str, HostNeed]:
    """Return the node that keeps the most bytes, and its need."""
    return max(
        needs.items(),
        key=lambda item: (item[1].memory_bytes + item[1].disk_bytes, item[0]),
    )


def host_notes(
    needs: Mapping[str, HostNeed], offers: Iterable[GpuOffer]
) -> tuple[str, ...]:
    """Return what a Plan takes of its fullest node, and whether the node has it."""
    if not needs:
        return ()
    node, need = fullest_node(needs)
    offer = next(offer for offer in offers if offer.node == node)
    notes = []
    memory, disk = offer.host_free_bytes, offer.disk_free_bytes
    if need.memory_bytes and memory is None:
        notes.append(
            sentence(
                "It needs {need} of the memory of {node}. How much of it is free is "
                "unknown.",
                need=gib(need.memory_bytes),
                node=node,
            )
        )
    elif need.memory_bytes and memory is not None:
        notes.append(
            sentence(
                "It needs {need} of the memory of {node}, which has {free} free.",
                need=gib(need.memory_bytes),
                node=node,
                free=gib(memory),
            )
        )
    if need.disk_bytes and disk is None:
        notes.append(
            sentence(
                "It needs {need} on the drive of {node}. How much of it is free is "
                "unknown.",
                need=gib(need.disk_bytes),
                node=node,
            )
        )
    elif need.disk_bytes and disk is not None:
        notes.append(
            sentence(
                "It needs {need} on the drive of {node}, which has {free} free.",
                need=gib(need.disk_bytes),
                node=node,
                free=gib(disk),
            )
        )
    return tuple(notes)


def shortage(plan: Plan, offers: Iterable[GpuOffer], limits: PlanLimits) -> str:
    """Return why the nodes lack space for what a Plan keeps off the Gpus, or ""."""
    if not plan.host_memory_bytes and not plan.host_disk_bytes:
        return ""
    here = [offer for offer in offers if offer.node in plan.nodes]
    room = host_room(here, limits.offload_memory_bytes)
    if room.fits(HostNeed(plan.host_memory_bytes, plan.host_disk_bytes)):
        return ""
    in_memory = plan.workload.offload == "cpu"
    if in_memory and room.memory_bytes is not None and room.disk_bytes is not None:
        return sentence(
            "It keeps {need} off the GPUs of a node ({nodes}), but a plan may take "
            "{free} of its memory and {disk} of its drive.",
            need=gib(plan.host_memory_bytes),
            nodes=either(plan.nodes[:MOST_NAMED]),
            free=gib(room.memory_bytes),
            disk=gib(room.disk_bytes),
        )
    if room.memory_bytes is not None and plan.host_memory_bytes > room.memory_bytes:
        return sentence(
            "It needs {need} of the memory of a node ({nodes}), but a plan may take "
            "{free} there.",
            need=gib(plan.host_memory_bytes),
            nodes=either(plan.nodes[:MOST_NAMED]),
            free=gib(room.memory_bytes),
        )
    return sentence(
        "It needs {need} on the drive of a node ({nodes}), but {free} are free there.",
        need=gib(plan.host_disk_bytes),
        nodes=either(plan.nodes[:MOST_NAMED]),
        free=gib(room.disk_bytes or 0),
    )

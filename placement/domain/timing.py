"""How long one step takes: compute, communication, bubble. Priors, not promises.

PLACEMENT.md section 3. Compute = operations / (peak x MFU x share of the card). MFU is
a prior (0.40; published FSDP runs of 7 to 13 B models reach 0.35 to 0.50) until a job's
first 20 steps calibrate it. Ranks by these numbers are stable; the seconds are rough.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from placement.domain.costs import LayerCost
from placement.domain.offer import GpuOffer
from placement.domain.states import widths
from placement.domain.workload import Workload

MFU_RATIO = 0.40
FP32_SLOWDOWN = 8.0
"""fp32 matrix products run at about an eighth of the 16-bit peak (V100 to H100)."""
FAST_LINK_BYTES_PER_SECOND = 200e9
"""NVLink, one direction, as all-reduce sees it."""
PCIE_BYTES_PER_SECOND = 12e9
"""PCIe 4 x16 between two cards of one node, as all-reduce sees it."""
OVERLAP_RATIO = 0.8
"""Part of backward that can hide gradient traffic (buckets are sent as they fill)."""
EXPOSED_RATIO = 0.1
"""Part of gradient traffic that nothing hides: the last bucket."""
HOST_OPTIMIZER_ELEMENTS_PER_SECOND = 1e9
"""Adam on the node's processor, parameters per second."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one optimizer step (or one inference call), by part."""

    compute_seconds: float
    communication_seconds: float = 0.0
    bubble_seconds: float = 0.0

    @property
    def total_seconds(self) -> float:
        """The whole step."""
        return self.compute_seconds + self.communication_seconds + self.bubble_seconds


def flops_per_second(offer: GpuOffer, workload: Workload) -> float:
    """What one Gpu is expected to do for us."""
    slow = FP32_SLOWDOWN if widths(workload).compute >= 4 else 1.0
    return offer.peak_flops * MFU_RATIO * offer.share_ratio / slow


def layer_flops(cost: LayerCost, workload: Workload) -> float:
    """Forward, backward (twice forward) and recomputation of one microbatch."""
    if not workload.trains:
        return cost.forward_flops
    return 3 * cost.forward_flops + cost.recompute_flops


def total_flops(costs: Sequence[LayerCost], workload: Workload) -> float:
    """All layers, one microbatch."""
    return sum(layer_flops(cost, workload) for cost in costs)


def joined_by_fast_links(offers: Sequence[GpuOffer]) -> bool:
    """True if all are in one group of fast links."""
    groups = {offer.link_group for offer in offers}
    return len(groups) == 1 and "" not in groups


def link_bytes_per_second(offers: Sequence[GpuOffer]) -> float:
    """The slowest link among Gpus of one node."""
    if joined_by_fast_links(offers):
        return FAST_LINK_BYTES_PER_SECOND
    return PCIE_BYTES_PER_SECOND


def data_parallel_time(
    costs: Sequence[LayerCost],
    workload: Workload,
    offers: Sequence[GpuOffer],
    *,
    strategy: str,
    offload: bool = False,
) -> StepTime:
    """Replicas with their gradient traffic; the slowest Gpu decides.

    Bytes per step: all-reduce and ZeRO-1/2 2 P b (N - 1) / N; FSDP 1.5 times that for
    one microbatch and (2 A + 1) / 2 of it for A (ZeRO paper, section 7).
    """
    degree = len(offers)
    runs = workload.accumulation
    slowest = min(flops_per_second(offer, workload) for offer in offers)
    compute = runs * total_flops(costs, workload) / slowest
    elements = sum(cost.elements for cost in costs)
    moved = 0.0
    if degree > 1 and workload.trains:
        width = widths(workload).compute if strategy == "fsdp" else 0.0
        width = width or widths(workload).gradient
        moved = 2 * elements * width * (degree - 1) / degree
        if strategy == "fsdp":
            moved *= (2 * runs + 1) / 2
    elif degree > 1 and strategy == "fsdp":
        moved = elements * widths(workload).compute * (degree - 1) / degree
    send = moved / link_bytes_per_second(offers)
    exposed = max(EXPOSED_RATIO * send, send - OVERLAP_RATIO * compute * 2 / 3)
    if offload:
        share = elements / (degree if strategy in ("zero1", "zero2", "fsdp") else 1)
        width = widths(workload).gradient + widths(workload).parameter
        exposed += share * width / PCIE_BYTES_PER_SECOND
        exposed += share / HOST_OPTIMIZER_ELEMENTS_PER_SECOND
    return StepTime(compute, exposed if degree > 1 or offload else 0.0)


def tensor_parallel_time(
    costs: Sequence[LayerCost], workload: Workload, offers: Sequence[GpuOffer]
) -> StepTime:
    """4 all-reduces of the residual stream per block, 6 when recomputed."""
    degree = len(offers)
    slowest = min(flops_per_second(offer, workload) for offer in offers)
    runs = workload.accumulation
    compute = runs * total_flops(costs, workload) / slowest
    rounds = 2 if not workload.trains else 4
    if workload.trains and workload.checkpointing == "full":
        rounds = 6
    blocks = [cost for cost in costs if cost.kind not in ("embedding", "head")]
    moved = 2 * (degree - 1) / degree * rounds * runs
    moved *= sum(cost.output_bytes for cost in blocks)
    return StepTime(compute, moved / link_bytes_per_second(offers))


def pipeline_time(
    stage_seconds: Sequence[float], microbatches: int, sent_seconds: float
) -> StepTime:
    """sum t_i + (m - 1) max t_i, told as useful work, bubble and sending.

    Useful work is what the busiest stage does; the rest of the iteration it waits.
    """
    longest = max(stage_seconds)
    whole = sum(stage_seconds) + (microbatches - 1) * longest
    useful = microbatches * longest
    return StepTime(useful, sent_seconds, whole - useful)

"""The time of one step: compute, communication, bubble. Priors, not promises.

See docs/design/placement.md#time. Compute = operations / (peak x PEAK_RATIO x share of
the card) + bytes / bandwidth, until a job's first 20 steps calibrate it (roofline;
Williams, Waterman, Patterson, CACM 52(4), 2009). The bytes of a product of M rows,
N columns and depth K are 2 (MK + KN + MN), for 2 MNK operations: 1/M + 1/N + 1/K of
each. The operators between the products (norms, activations, residuals) move a number
of bytes per token and width. So narrow models and small microbatches reach less of the
peak, and so do cards whose arithmetic outgrew their memory. Ranks by these numbers are
stable; the seconds are rough.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from placement.planner.memory.layer_costs import LayerCost
from placement.planner.memory.parameter_states import widths
from placement.planner.model.spec import ModelSpec
from placement.planner.search.link_bandwidth import (
    BYTES_PER_SECOND,
    UNKNOWN,
    SlowestLink,
)
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.strategies import STRATEGIES
from placement.planner.values.workload import Workload

PEAK_RATIO = 0.70
"""Part of the peak that wide matrix products reach. With BYTES_PER_WIDTH it follows
from 92 published runs (MPT of 125 M to 70 B on A100 and H100: MosaicML, llm-foundry,
scripts/train/benchmarking) and blocks of Llama and GPT-2 that were measured on an H200
(`bench/compute_rate.py`).
"""
BYTES_PER_WIDTH = 5.0
"""Bytes moved per operation of a block, times its width: 4/3 for the operands of its
products, the rest for the operators between them.
"""
CUT_BYTES_PER_WIDTH = 1 / 3
"""Bytes that each further tensor rank adds: its products are narrower on one side."""
PLAIN_INNER = 4
"""Inner width of a plain block, times its width."""
UNKNOWN_WIDTH = 1024.0
"""Assumed for a model whose shape is unknown."""
FP32_SLOWDOWN = 8.0
"""fp32 matrix products of a card that is not in the table of cards are assumed to run
at an eighth of the 16-bit peak, as on V100.
"""
ROWS_FOR_HALF = 150.0
"""Peak 16-bit operations over memory bytes a second: 76 (3090), 153 (A100), 295
(H100). At that many rows memory takes as long as arithmetic at its peak. Work is
counted for a card with this balance; `flops_per_second` corrects it for others."""
PCIE_BYTES_PER_SECOND = BYTES_PER_SECOND[UNKNOWN]
"""Also the rate to the node's memory."""
NVME_BYTES_PER_SECOND = 3e9
"""One drive, reading and writing in turn."""
OVERLAP_RATIO = 0.8
"""Part of backward that can hide gradient traffic (buckets are sent as they fill)."""
EXPOSED_RATIO = 0.1
"""Part of gradient traffic that cannot be hidden: the last bucket."""
HOST_OPTIMIZER_ELEMENTS_PER_SECOND = 1e9
"""Parameters per second of Adam on the node's processor."""
HOST_BYTES_PER_ELEMENT = 12.0
"""fp32 weight and two moments, read from and written to a drive in every step."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one optimizer step (or one inference call), by part."""

    compute_seconds: float
    communication_seconds: float = 0.0
    bubble_seconds: float = 0.0

    @property
    def total_seconds(self) -> float:
        """Return the time of the whole step."""
        return self.compute_seconds + self.communication_seconds + self.bubble_seconds

    def times(self, ratio: float) -> "StepTime":
        """Return every part multiplied by a ratio."""
        return StepTime(
            self.compute_seconds * ratio,
            self.communication_seconds * ratio,
            self.bubble_seconds * ratio,
        )


@dataclass(frozen=True, slots=True)
class Work:
    """The work of some layers on one rank: per microbatch, and per step."""

    flops: float
    """Forward, backward and recomputation of one microbatch, converted to the
    operations that would take the same time in a large matrix product of a card with
    ROWS_FOR_HALF operations per byte.
    """
    gradient_bytes: float
    """Bytes that replicas average."""
    weight_bytes: float
    """Weights in the compute precision, which FSDP gathers."""
    stepped: float
    """Elements that the optimizer steps."""
    stream_bytes: float
    """Outputs of the blocks, which tensor parallelism adds up."""
    logits_bytes: float = 0.0
    """Whole logits, which tensor ranks gather for the loss."""


@dataclass(frozen=True, slots=True)
class ProductSizes:
    """The sizes of a model's matrix products, on which their efficiency depends."""

    width: float
    """Of its blocks."""
    routed: float = 0.0
    """Part of a token's operations in the products of routed experts."""
    crowd: float = 1.0
    """Experts for each one that a token uses: their products have so many times fewer
    rows.
    """
    narrow: float = 0.0
    """1 / inner width of an expert, beyond that of a plain block."""


def product_sizes(spec: ModelSpec) -> ProductSizes:
    """Return the sizes of a model's products."""
    shape = spec.shape
    if shape is None:
        return ProductSizes(UNKNOWN_WIDTH)
    width = float(shape.hidden)
    if not shape.experts:
        return ProductSizes(width)
    routed = used = 0.0
    crowd = shape.experts / shape.experts_run
    for layer in spec.layers:
        routes = any(one.component == "router" for one in layer.parts)
        for one in layer.parts:
            stacked = 0
            if routes and one.component == "mlp":
                named = sum(x.outputs * x.inputs * x.copies for x in one.linears)
                stacked = max(0, one.matrix_parameters - named)
            routed += stacked / crowd
            used += one.matrix_parameters - stacked
    inner = shape.expert_intermediate or shape.intermediate
    return ProductSizes(
        width,
        routed / ((routed + used) or 1.0),
        crowd,
        max(0.0, 1 / inner - 1 / (PLAIN_INNER * width)),
    )


def efficiency_ratio(
    tokens: float, sizes: ProductSizes, tensor_degree: int = 1, expert_degree: int = 1
) -> float:
    """Return the part of PEAK_RATIO that a microbatch of so many tokens reaches.

    Ranks that share experts bring them as many times more rows.

    >>> wide, narrow = ProductSizes(8192), ProductSizes(1024)
    >>> round(efficiency_ratio(8192, wide), 2), round(efficiency_ratio(8192, narrow), 2)
    (0.93, 0.66)
    """
    plain = 1 - sizes.routed
    rows = (plain + sizes.routed * sizes.crowd / expert_degree) / tokens
    cut = CUT_BYTES_PER_WIDTH * (tensor_degree - 1)
    moved = rows + (BYTES_PER_WIDTH + cut) / sizes.width
    moved += sizes.routed * sizes.narrow * tensor_degree
    return 1 / (1 + PEAK_RATIO * ROWS_FOR_HALF * moved)


def work_of(
    costs: Sequence[LayerCost],
    workload: Workload,
    *,
    tokens: float,
    fetched: bool,
    sizes: ProductSizes,
    tensor_degree: int = 1,
    expert_degree: int = 1,
) -> Work:
    """Return the sum of layers. `fetched`: gradients are sent in the compute precision
    (FSDP).
    """
    bytes_each = widths(workload)
    gradients = float(sum(cost.gradient_bytes for cost in costs))
    if fetched and bytes_each.gradient:
        gradients *= bytes_each.compute / bytes_each.gradient
    ratio = efficiency_ratio(tokens, sizes, tensor_degree, expert_degree)
    ends = ("embedding", "head")
    return Work(
        flops=sum(layer_flops(cost, workload) for cost in costs) / ratio,
        gradient_bytes=gradients,
        weight_bytes=float(sum(cost.gathered_bytes for cost in costs)),
        stepped=sum(c.gradient_bytes for c in costs) / max(1.0, bytes_each.gradient),
        stream_bytes=float(sum(c.output_bytes for c in costs if c.kind not in ends)),
        logits_bytes=float(sum(c.logits_bytes for c in costs)),
    )


def combined(works: Sequence[Work]) -> Work:
    """Return the joint work of several pieces of the model."""
    if len(works) == 1:
        return works[0]
    return Work(*(sum(getattr(w, name) for w in works) for name in Work.__slots__))


def flops_per_second(
    offer: GpuOffer, workload: Workload, width: float = math.inf, rows: float = 0.0
) -> float:
    """Return the expected operations per second of one Gpu for this workload.

    `width`: of the model's blocks. An infinite one needs no memory. `rows`: weights
    that each token reads, as a part of all, if prompts are read in pieces. A step never
    takes less than pieces x weights / bandwidth.
    """
    full = widths(workload).compute >= 4
    slow = _fp32_slowdown(offer) if full else 1.0
    rate = offer.peak_flops * PEAK_RATIO * offer.share_ratio / slow
    moved = PEAK_RATIO * BYTES_PER_WIDTH / width
    moved += PEAK_RATIO * rows
    own = (1 + moved * ROWS_FOR_HALF) / (1 + moved * _balance(offer, full=full))
    return rate * own


def memory_rate(offer: GpuOffer) -> float:
    """Return the bytes per second of a Gpu's memory by the data sheet, for the share of
    the card.

    A card that is not in the table of cards counts as one with ROWS_FOR_HALF operations
    per byte.
    """
    rate = offer.peak_flops / ROWS_FOR_HALF
    if offer.card is not None:
        rate = offer.card.memory_bytes_per_second
    return rate * offer.share_ratio


def _balance(offer: GpuOffer, *, full: bool) -> float:
    """Return operations per two bytes of one Gpu's memory traffic, in 16 or 32 bits.

    Cards below ROWS_FOR_HALF (a 3090 has half of it) count as cards with it, because
    none of them was measured.
    """
    card = offer.card
    if card is None:
        return ROWS_FOR_HALF
    flops = 2 * card.fp32_flops if full else card.half_flops
    return max(ROWS_FOR_HALF, flops / card.memory_bytes_per_second)


def _fp32_slowdown(offer: GpuOffer) -> float:
    """Return how many times slower fp32 is than 16 bits: data sheet's rates, no
    TF32.
    """
    card = offer.card
    return card.half_flops / card.fp32_flops if card else FP32_SLOWDOWN


def layer_flops(cost: LayerCost, workload: Workload) -> float:
    """Return forward, backward and recomputation of one microbatch."""
    if not workload.trains:
        return cost.forward_flops
    return cost.forward_flops + cost.backward_flops + cost.recompute_flops


def exposed_seconds(
    moved_bytes: float, link: SlowestLink, compute_seconds: float
) -> float:
    """Return the gradient traffic that backward (two thirds of compute) cannot hide."""
    if moved_bytes <= 0:
        return 0.0
    send = moved_bytes / link.bytes_per_second
    hidden = OVERLAP_RATIO * compute_seconds * 2 / 3
    return max(EXPOSED_RATIO * send, send - hidden)


def all_reduce_bytes(size_bytes: float, degree: int) -> float:
    """Return the bytes that one rank sends: 2 (N - 1) / N of them, in a ring."""
    return 2 * size_bytes * (degree - 1) / degree


def host_seconds(work: Work, workload: Workload, *, share_ratio: float) -> float:
    """Return the time per step of keeping the optimizer (and the weights) off the
    Gpu.
    """
    if workload.offload == "none":
        return 0.0
    width = widths(workload)
    stepped = work.stepped * share_ratio
    spent = 0.0
    if workload.trains:
        spent += stepped * (width.gradient + width.parameter) / PCIE_BYTES_PER_SECOND
        spent += stepped / HOST_OPTIMIZER_ELEMENTS_PER_SECOND
    if workload.offload_parameters:
        passes = 2 * workload.accumulation if workload.trains else 1
        spent += passes * work.weight_bytes * share_ratio / PCIE_BYTES_PER_SECOND
    if workload.offload == "nvme":
        moved = 2 * HOST_BYTES_PER_ELEMENT * stepped if workload.trains else 0.0
        if workload.offload_parameters:
            moved += work.weight_bytes * share_ratio
        spent += moved / NVME_BYTES_PER_SECOND
    return spent


def data_parallel_time(
    work: Work,
    workload: Workload,
    *,
    busy: float,
    degree: int,
    link: SlowestLink,
    strategy: str,
) -> StepTime:
    """Return the step time of replicas with their gradient traffic.

    `busy`: seconds that the slowest computes. Bytes per step: all-reduce and ZeRO-1/2 2
    P b (N - 1) / N; FSDP 1.5 times that for one microbatch and (2 A + 1) / 2 of it for
    A (ZeRO paper, section 7). With ZeRO-1/2 the second half of them are weights, which
    are gathered after the optimizer's step, when nothing hides it.
    """
    runs = workload.accumulation
    zero_stage = STRATEGIES[strategy].zero_stage
    fetches = zero_stage == 3
    moved = gathered = 0.0
    if workload.trains and fetches:
        gathers = 2 * runs * work.weight_bytes
        moved = (gathers + work.gradient_bytes) * (degree - 1) / degree
    elif workload.trains:
        moved = all_reduce_bytes(work.gradient_bytes, degree)
        if zero_stage and degree > 1:
            gathered = updated_weight_seconds(work, workload, degree, link)
            moved /= 2
    elif fetches:
        moved = work.weight_bytes * (degree - 1) / degree
    shares = degree if zero_stage else 1
    sent = exposed_seconds(moved if degree > 1 else 0.0, link, busy)
    sent += gathered + host_seconds(work, workload, share_ratio=1 / shares)
    return StepTime(busy, sent)


def updated_weight_seconds(
    work: Work, workload: Workload, degree: int, link: SlowestLink
) -> float:
    """Return the time in which ranks send each other the weights that they stepped."""
    moved = work.stepped * widths(workload).parameter * (degree - 1) / degree
    return moved / link.bytes_per_second


def tensor_seconds(
    work: Work, workload: Workload, *, degree: int, link: SlowestLink
) -> float:
    """Return the time of one microbatch's all-reduces of the residual stream.

    There are 4 per block, 6 if it is recomputed, 2 in inference. They cannot be hidden.
    In training the logits are gathered once, except by Megatron-LM, whose loss takes
    each rank's part of the words (`model_ends.head`).
    """
    if degree < 2:
        return 0.0
    rounds = 2 if not workload.trains else 4
    if workload.trains and workload.checkpointing == "full":
        rounds = 6
    moved = rounds * all_reduce_bytes(work.stream_bytes, degree)
    if workload.trains and workload.precision != "megatron_bf16":
        moved += work.logits_bytes * (degree - 1) / degree
    return moved / link.bytes_per_second


def tensor_parallel_time(
    work: Work, workload: Workload, *, busy: float, degree: int, link: SlowestLink
) -> StepTime:
    """Return the step time with every layer cut over `degree` Gpus, each of which
    computes for `busy` seconds.
    """
    runs = workload.accumulation
    sent = runs * tensor_seconds(work, workload, degree=degree, link=link)
    spent = host_seconds(work, workload, share_ratio=1.0)
    return StepTime(busy, sent + spent)


def pipeline_time(
    stage_seconds: Sequence[float],
    microbatches: int,
    sent_seconds: float,
    virtual_stages: int = 1,
) -> StepTime:
    """Return sum t_i + (m - 1) max t_i, divided into useful work, bubble and sending.

    Useful work is the work of the busiest stage. It waits for the rest of the step. The
    interleaved schedule fills its pipeline piece by piece, v times as fast (Narayanan
    et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM", SC 2021, section 2.2).
    """
    longest = max(stage_seconds)
    useful = microbatches * longest
    bubble = (sum(stage_seconds) - longest) / virtual_stages
    return StepTime(useful, sent_seconds, bubble)

"""ZeRO-1 cut by room: equal pieces of the optimizer state on unequally full Gpus.

Discrete shards that share a Gpu are one rank with a larger share (NCCL refuses two
ranks on one Gpu). Weights and gradients are whole on every rank, so the remaining
memory of each Gpu determines its number of pieces. The cut uses the fewest pieces that
fit.
"""

from collections.abc import Sequence
from dataclasses import replace

from placement.planner.model.sharding import Sharding
from placement.planner.search.candidates.data_parallel import (
    busy_seconds,
    even_counts,
    fits_equally,
    not_applicable,
    room,
)
from placement.planner.search.candidates.explanation import refusal, too_small
from placement.planner.search.candidates.search_context import (
    RankPlacement,
    SearchContext,
)
from placement.planner.search.equal_shards import zero_coalesce
from placement.planner.search.memory_savings import (
    AllowedRemedies,
    MemoryFit,
    Setting,
    search,
)
from placement.planner.search.step_time import data_parallel_time
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.plan import Plan, RejectedStrategy
from placement.planner.values.strategies import ZERO1, ZERO1_UNEVEN
from telemetry.protocol.sentences import sentence

MOST_PIECES_PER_GPU = 16


def zero1_uneven(context: SearchContext) -> list[Plan] | RejectedStrategy:
    """Plan it on the fewest of the roomiest Gpus with which it fits."""
    strategy = ZERO1_UNEVEN.key
    unfit = not_applicable(context, ZERO1.key)
    if unfit is not None:
        return refusal(strategy, unfit.reason)
    nearest: MemoryFit | None = None
    # Offloaded state needs no room on any Gpu, so there is nothing to share.
    freedom = AllowedRemedies(
        limits=context.limits, quantizable=context.quantize is not None
    )
    ranked = sorted(
        context.offers,
        key=lambda offer: (-offer.free_bytes, offer.node, offer.index, offer.uuid),
    )
    for count in even_counts(context):
        even = Sharding(strategy=ZERO1.key, data_degree=count)
        equal, _ = search(
            context.asked,
            count,
            freedom,
            lambda s, even=even: fits_equally(context, even, s),  # type: ignore[misc]
        )
        chosen = tuple(sorted(ranked[:count], key=lambda o: (o.node, o.index, o.uuid)))
        setting, fit = search(
            context.asked,
            count,
            freedom,
            lambda s, chosen=chosen: _fits(context, chosen, s),  # type: ignore[misc]
        )
        if equal and (setting is None or equal.severity <= setting.severity):
            return refusal(
                strategy,
                sentence("Equal shares fit just as well (ZeRO-1)."),
                code="not-better",
            )
        if setting is not None:
            return [_plan(context, chosen, setting)]
        if nearest is None or fit.missing_bytes < nearest.missing_bytes:
            nearest = fit
    fit = nearest or MemoryFit(False)
    return too_small(strategy, fit.gpu, fit.missing_bytes, room(fit))


def _with_share(count: int, share_ratio: float) -> Sharding:
    return Sharding(strategy=ZERO1.key, data_degree=count, share_ratio=share_ratio)


def _shares(
    context: SearchContext, chosen: Sequence[GpuOffer], setting: Setting
) -> tuple[float, ...] | None:
    """Return shares of the optimizer state per Gpu, with the fewest pieces that fit."""
    count = len(chosen)
    fixed = context.need_bytes(setting, _with_share(count, 0.0))
    if any(offer.free_bytes < fixed for offer in chosen):
        return None
    state = context.need_bytes(setting, _with_share(count, 1.0)) - fixed
    pieces = count
    while pieces <= MOST_PIECES_PER_GPU * count:
        cut = zero_coalesce(
            shards=pieces,
            shard_bytes=state / pieces,
            fixed_bytes=[fixed] * count,
            free_bytes=[offer.free_bytes for offer in chosen],
            fewest=False,
        )
        if cut is not None:
            shares = tuple(number / pieces for number in cut.shards)
            fit = all(
                context.need_bytes(setting, _with_share(count, share))
                <= offer.free_bytes
                for offer, share in zip(chosen, shares, strict=True)
            )
            if fit:
                return shares
        pieces *= 2
    return None


def _fits(
    context: SearchContext, chosen: Sequence[GpuOffer], setting: Setting
) -> MemoryFit:
    if _shares(context, chosen, setting) is not None:
        return MemoryFit(True)
    count = len(chosen)
    fixed = context.need_bytes(setting, _with_share(count, 0.0))
    whole = context.need_bytes(setting, _with_share(count, 1.0)) - fixed
    smallest = min(chosen, key=lambda offer: offer.free_bytes)
    if smallest.free_bytes < fixed:
        return MemoryFit(False, fixed - smallest.free_bytes, smallest)
    spare = sum(offer.free_bytes - fixed for offer in chosen)
    largest = max(chosen, key=lambda offer: offer.free_bytes)
    return MemoryFit(False, max(1, whole - spare), largest)


def _plan(
    context: SearchContext, chosen: tuple[GpuOffer, ...], setting: Setting
) -> Plan:
    shares = _shares(context, chosen, setting) or ()
    count = len(chosen)
    even = replace(_with_share(count, 0.0), share_ratio=None)
    time = data_parallel_time(
        context.work(setting, even),
        setting.workload,
        busy=busy_seconds(context, setting, even, chosen),
        degree=count,
        link=context.link(chosen),
        strategy=ZERO1.key,
    )
    parts = ", ".join(
        f"{offer.label} {share:.0%}"
        for offer, share in zip(chosen, shares, strict=True)
    )
    why = [
        sentence(
            "Each GPU holds weights and gradients; the optimizer state is split by "
            "free memory."
        ),
        sentence("Shares: {parts}.", parts=parts),
        sentence("Equal shares would not fit."),
    ]
    launch: dict[str, object] = {
        "microbatch": setting.workload.microbatch(count),
        "shares": list(shares),
        "gradient_as_bucket_view": True,
    }
    seats = [
        RankPlacement(
            offer,
            _with_share(count, share),
            replica=replica,
            busy_seconds=time.compute_seconds,
        )
        for replica, (offer, share) in enumerate(zip(chosen, shares, strict=True))
    ]
    return context.plan(ZERO1_UNEVEN.key, setting, seats, time, why=why, launch=launch)

"""Strategies whose ranks each run the whole model: one Gpu, DDP, ZeRO, FSDP.

All ranks need the same, so the Gpu with the least free memory decides. The objective is
the mildest remedies, then the shortest step. Of all sets of N Gpus that fit, the one
with the shortest step is used. Speed is that of the slowest and traffic that of the
slowest hop, so it is the N fastest of some set of close Gpus (topology.neighbourhoods).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from placement.planner.model.sharding import Sharding
from placement.planner.search.candidates.explanation import (
    StrategyUnfit,
    refusal,
    too_small,
)
from placement.planner.search.candidates.search_context import (
    CLASS_ROUNDING_BYTES,
    RankPlacement,
    SearchContext,
    mildest_unless_slow,
    worth_ratio,
)
from placement.planner.search.gpu_selection import (
    Shortage,
    fastest,
    least_utilized,
    room_for,
)
from placement.planner.search.memory_savings import (
    AllowedRemedies,
    MemoryFit,
    Setting,
    allowed_again,
    as_mild,
    divisors,
    first_or_none,
    search,
    smaller_asks,
)
from placement.planner.search.step_time import StepTime, data_parallel_time
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.humanize import gib, gib_at_least, seconds
from placement.planner.values.objective import SHORT_STEP_SECONDS
from placement.planner.values.plan import Plan, RejectedStrategy
from placement.planner.values.strategies import SINGLE, STRATEGIES
from placement.planner.values.workload import Workload
from telemetry.protocol.sentences import counted, sentence

EVERY = 8
"""Up to this many replicas, every number is tried."""


@dataclass(frozen=True, slots=True)
class FoundStrategy:
    """A strategy on chosen Gpus, before it becomes a Plan."""

    setting: Setting
    chosen: tuple[GpuOffer, ...]
    sharding: Sharding
    time: StepTime


def single(context: SearchContext) -> list[Plan] | StrategyUnfit:
    """Plan one Gpu: the least utilized that fits, or the one for the objective if there
    is one.
    """
    freedom = context.freedom(parameters=True)

    def fit(setting: Setting) -> MemoryFit:
        return _fit(least_utilized(context.offers, _alone(context, setting)))

    setting, nearest = search(context.asked, 1, freedom, fit)
    if setting is None:
        return StrategyUnfit(
            lambda: refuse(context, SINGLE.key, 1, nearest, freedom, fit)
        )
    if context.greedy:
        options = as_mild(context.asked, setting, 1, freedom, fit)
        setting = min(options, key=lambda one: _price(context, one))
    need = _alone(context, setting)
    offer = _one(context, setting, need)
    sharding = Sharding(offload_optimizer=setting.offload)
    time = _time(context, setting, (offer,), sharding)
    why = [
        sentence(
            "It fits on one GPU, so nothing has to be sent between GPUs: {offer} "
            "has {free} free and about {need} are needed.",
            offer=offer.label,
            free=gib(offer.free_bytes),
            need=gib(need),
        ),
    ]
    if context.objective in (None, "soonest", "fewest", "least_disturbance"):
        why.append(
            sentence("{gpu} is the least busy GPU with enough memory.", gpu=offer.label)
            if offer.util_pct is None
            else sentence(
                "{gpu} is the least busy GPU with enough memory ({util} % busy).",
                gpu=offer.label,
                util=f"{offer.util_pct:.0f}",
            )
        )
    if offer.compute_processes:
        why.append(sentence("Other processes use {offer} now.", offer=offer.label))
    partly = [o for o in context.offers if o.memory_total_bytes >= need > o.free_bytes]
    if partly:
        names = ", ".join(one.label for one in partly)
        why.append(
            sentence(
                "{names} would be large enough if empty, but only free memory counts.",
                names=names,
            )
        )
    launch = {"microbatch": setting.workload.microbatch()}
    seat = RankPlacement(offer, sharding, busy_seconds=time.compute_seconds)
    return [context.plan(SINGLE.key, setting, [seat], time, why=why, launch=launch)]


def _alone(context: SearchContext, setting: Setting) -> int:
    return context.need_bytes(setting, Sharding(offload_optimizer=setting.offload))


def _price(context: SearchContext, setting: Setting) -> tuple[float, int]:
    """Return the cost of a step on the best Gpu for a setting, and its accumulation.

    The cost is in seconds, or weighted by the quota for the objective "cheapest".
    """
    offer = _one(context, setting, _alone(context, setting))
    sharding = Sharding(offload_optimizer=setting.offload)
    seconds = _time(context, setting, (offer,), sharding).total_seconds
    weight = offer.weight if context.objective == "cheapest" else 1
    return seconds * weight, setting.workload.accumulation


def _one(context: SearchContext, setting: Setting, need_bytes: int) -> GpuOffer:
    """Return the Gpu of a Plan on one Gpu, by the objective."""
    fitting = [offer for offer in context.offers if offer.free_bytes >= need_bytes]
    if context.objective in ("fastest", "cheapest"):

        def cost(offer: GpuOffer) -> tuple[float, float, str, int, str]:
            pace = context.speed((offer,), setting)
            price = offer.weight / pace if context.objective == "cheapest" else 1 / pace
            return price, offer.busy_pct, offer.node, offer.index, offer.uuid

        return min(fitting, key=cost)
    chosen = least_utilized(fitting, need_bytes)
    assert isinstance(chosen, GpuOffer)
    return chosen


def data_parallel(
    context: SearchContext, strategy: str
) -> list[Plan] | RejectedStrategy | StrategyUnfit:
    """Plan DDP, ZeRO-1, ZeRO-2 or FSDP on N equal ranks, with the best one or two N."""
    unfit = not_applicable(context, strategy)
    if unfit is not None:
        return unfit
    found: list[FoundStrategy] = []
    nearest: tuple[int, MemoryFit] | None = None
    for count in even_counts(context):
        sharding = Sharding(strategy=strategy, data_degree=count)
        one, fit = _equal_ranks(context, sharding)
        if one is not None:
            found.append(one)
        elif nearest is None or fit.missing_bytes < nearest[1].missing_bytes:
            nearest = (count, fit)
    if not found:
        count, fit = nearest or (2, MemoryFit(False))
        sharding = Sharding(strategy=strategy, data_degree=count)
        return StrategyUnfit(
            lambda: refuse(
                context,
                strategy,
                count,
                fit,
                _freedom(context, sharding),
                lambda setting: fits_equally(context, sharding, setting),
                lambda setting: fits_equally(context, sharding, setting, exact=True),
            )
        )
    shown = _worth_showing(found, worth_ratio(context))
    return [_data_plan(context, strategy, one, found) for one in shown]


def counts_of(context: SearchContext, most: int) -> list[int]:
    """Return numbers of replicas to try.

    They are all up to EVERY, then even steps, the numbers of Gpus that are at least as
    roomy as some Gpu or as fast, and all.
    """
    if most <= EVERY:
        return list(range(2, most + 1))
    found = {*range(2, EVERY + 1), *range(EVERY, most, 4), most}
    for value in (_free_class, _pace):
        ranked = sorted((value(offer) for offer in context.offers), reverse=True)
        found |= {
            place for place in range(EVERY, most) if ranked[place] < ranked[place - 1]
        }
    return sorted(found)


def even_counts(context: SearchContext) -> list[int]:
    """Return numbers of replicas to try that share the batch out evenly.

    Inference may share it unevenly, because it has no step for which all wait.
    """
    batch = context.asked.batch
    most = min(context.most_gpus, batch)
    if not context.asked.trains:
        return counts_of(context, most)
    tried = {*counts_of(context, most), *divisors(batch)}
    return sorted(n for n in tried if 2 <= n <= most and not batch % n)


def _free_class(offer: GpuOffer) -> float:
    return float(offer.free_bytes // CLASS_ROUNDING_BYTES)


def _pace(offer: GpuOffer) -> float:
    return offer.peak_flops * offer.share_ratio


def not_applicable(context: SearchContext, strategy: str) -> RejectedStrategy | None:
    """Return why a strategy makes no sense here, before any memory is counted."""
    if context.most_gpus < 2:
        return refusal(strategy, sentence("It needs at least two GPUs of one node."))
    zero_stage = STRATEGIES[strategy].zero_stage
    if zero_stage and not context.asked.trains:
        return refusal(
            strategy, sentence("Inference has no gradients or optimizer to share.")
        )
    if context.asked.batch < 2:
        return refusal(
            strategy, sentence("A batch of 1 cannot be shared out; it needs 2 or more.")
        )
    if zero_stage == 1 and context.asked.optimizer == "sgd":
        return refusal(
            strategy, sentence("Plain SGD keeps no optimizer state to share out.")
        )
    if not even_counts(context):
        most = min(context.most_gpus, context.asked.batch)
        if most == 2:
            return refusal(
                strategy,
                sentence(
                    "A batch of {batch} cannot be shared out evenly over 2 GPUs.",
                    batch=context.asked.batch,
                ),
            )
        return refusal(
            strategy,
            sentence(
                "A batch of {batch} cannot be shared out evenly over 2 to {most} GPUs.",
                batch=context.asked.batch,
                most=most,
            ),
        )
    return None


def _freedom(context: SearchContext, sharding: Sharding) -> AllowedRemedies:
    """Return the remedies of a strategy.

    Copies keep the optimizer once each. FSDP may also offload its weights.
    """
    copies = sharding.data_degree if not sharding.stage else 1
    return context.freedom(parameters=sharding.stage == 3, copies=copies)


def _equal_ranks(
    context: SearchContext, sharding: Sharding
) -> tuple[FoundStrategy | None, MemoryFit]:
    """Return the mildest setting with which N Gpus fit, and the N fastest Gpus."""
    setting, nearest = search(
        context.asked,
        sharding.data_degree,
        _freedom(context, sharding),
        lambda s: fits_equally(context, sharding, s),
    )
    if setting is None:
        return None, nearest
    options = [setting]
    pieces = setting.workload.accumulation
    # Ranks that gather their weights for each piece may send most of the time. With
    # recomputation they need fewer pieces.
    if context.greedy or (sharding.stage == 3 and pieces > context.asked.accumulation):
        options = as_mild(
            context.asked,
            setting,
            sharding.data_degree,
            _freedom(context, sharding),
            lambda s: fits_equally(context, sharding, s),
        )
    found = [
        equal_group(context, one, replace(sharding, offload_optimizer=one.offload))
        for one in options
    ]
    best = mildest_unless_slow(context, found, lambda one: one.time.total_seconds)
    return best, nearest


def equal_group(
    context: SearchContext, setting: Setting, sharding: Sharding
) -> FoundStrategy:
    """Return the N Gpus with room and with the shortest step."""
    need = context.need_bytes(setting, sharding)
    options: dict[tuple[str, ...], tuple[GpuOffer, ...]] = {}
    for group in context.near():
        fitting = [offer for offer in group if offer.free_bytes >= need]
        if len(fitting) >= sharding.data_degree:
            chosen = fastest(fitting, sharding.data_degree)
            options.setdefault(tuple(offer.uuid for offer in chosen), chosen)
    tried = [
        FoundStrategy(
            setting, chosen, sharding, _time(context, setting, chosen, sharding)
        )
        for chosen in options.values()
    ]
    return min(
        tried,
        key=lambda one: (
            one.time.total_seconds,
            sum(offer.busy_pct for offer in one.chosen),
            [(offer.node, offer.index, offer.uuid) for offer in one.chosen],
        ),
    )


def fits_equally(
    context: SearchContext, sharding: Sharding, setting: Setting, *, exact: bool = False
) -> MemoryFit:
    """Return whether as many Gpus as replicas have room; if not, the one that lacks it.

    The missing bytes are `exact`, or a lower bound: if the states alone are too large,
    nothing else is counted.
    """
    if setting.offload:
        sharding = replace(sharding, offload_optimizer=True)
    count = sharding.data_degree
    if not exact:
        short = room_for(context.offers, count, context.state_bytes(setting, sharding))
        if short is not None:
            return _fit(short)
    return _fit(room_for(context.offers, count, context.need_bytes(setting, sharding)))


def _fit(placed: object) -> MemoryFit:
    if isinstance(placed, Shortage):
        return MemoryFit(False, placed.missing_bytes, placed.gpu)
    return MemoryFit(True)


def _time(
    context: SearchContext,
    setting: Setting,
    chosen: Sequence[GpuOffer],
    sharding: Sharding,
) -> StepTime:
    return data_parallel_time(
        context.work(setting, sharding),
        setting.workload,
        busy=busy_seconds(context, setting, sharding, chosen),
        degree=len(chosen),
        link=context.link(chosen),
        strategy=sharding.strategy,
    )


def busy_seconds(
    context: SearchContext,
    setting: Setting,
    sharding: Sharding,
    chosen: Sequence[GpuOffer],
) -> float:
    """Return the seconds of a step that the slowest of some Gpus computes, if each runs
    all layers.
    """
    runs = setting.workload.accumulation
    return context.rank_time(setting, sharding, chosen).step_seconds(runs)


def _worth_showing(found: Sequence[FoundStrategy], worth: float) -> list[FoundStrategy]:
    """Return the Plans to show.

    They are the fewest Gpus with the mildest remedies, the least time x cost with
    equally mild remedies, and the fastest if it is much faster.
    """
    first = min(found, key=lambda one: (one.setting.severity[:4], len(one.chosen)))
    alike = [
        one for one in found if one.setting.severity[:3] <= first.setting.severity[:3]
    ]
    knee = min(alike, key=_time_times_cost)
    quick = min(alike, key=lambda one: one.time.total_seconds)
    shown = [first] if knee is first else [first, knee]
    limit = worth * min(one.time.total_seconds for one in shown)
    return (
        shown if quick.time.total_seconds > limit or quick in shown else [*shown, quick]
    )


def _time_times_cost(one: FoundStrategy) -> float:
    weight = sum(offer.weight for offer in one.chosen) or len(one.chosen)
    return weight * max(one.time.total_seconds, SHORT_STEP_SECONDS) ** 2


def _data_plan(
    context: SearchContext,
    strategy: str,
    one: FoundStrategy,
    others: Sequence[FoundStrategy],
) -> Plan:
    count = len(one.chosen)
    smallest = min(one.chosen, key=lambda offer: (offer.free_bytes, offer.index))
    need = context.need_bytes(one.setting, one.sharding)
    why = [
        STRATEGIES[strategy].why,
        sentence(
            "All {count} ranks need about {need}; the smallest, {smallest}, has "
            "{free} free.",
            count=count,
            need=gib(need),
            smallest=smallest.label,
            free=gib(smallest.free_bytes),
        ),
        sentence("They are joined by {chosen}.", chosen=context.link(one.chosen).words),
    ]
    if len({offer.peak_flops * offer.share_ratio for offer in one.chosen}) > 1:
        why.append(sentence("The slowest of these GPUs sets the pace of all."))
    fewest = min(others, key=lambda other: len(other.chosen))
    if one is not fewest:
        why.append(
            sentence(
                "{gpus} take {total} a step, {chosen} would take {total2}.",
                gpus=counted("{n} GPU", "{n} GPUs", count),
                total=seconds(one.time.total_seconds),
                chosen=len(fewest.chosen),
                total2=seconds(fewest.time.total_seconds),
            )
        )
    launch: dict[str, object] = {
        "microbatch": one.setting.workload.microbatch(count),
        "gradient_as_bucket_view": True,
    }
    if STRATEGIES[strategy].engine == "deepspeed":
        costs = context.costs(one.setting, one.sharding)
        launch["reduce_bucket_size"] = max(cost.elements for cost in costs)
        why.append(sentence("This plan needs DeepSpeed in your environment."))
    busy = one.time.compute_seconds
    seats = [
        RankPlacement(offer, one.sharding, replica=replica, busy_seconds=busy)
        for replica, offer in enumerate(one.chosen)
    ]
    return context.plan(strategy, one.setting, seats, one.time, why=why, launch=launch)


def refuse(
    context: SearchContext,
    strategy: str,
    count: int,
    nearest: MemoryFit,
    freedom: AllowedRemedies,
    fit: Callable[[Setting], MemoryFit],
    exact: Callable[[Setting], MemoryFit] | None = None,
) -> RejectedStrategy:
    """Return a Refusal with the smallest change of the request that would fit.

    `exact`: the exact form of `fit`, if that gives only a lower bound of the missing
    bytes.
    """
    if exact is not None:
        nearest = search(context.asked, count, freedom, exact)[1]

    def fits_with_remedies(workload: Workload) -> bool:
        return search(workload, count, freedom, fit)[0] is not None

    change = ""
    for words, limits in allowed_again(context.limits):
        wider = replace(freedom, limits=limits)
        if search(context.asked, count, wider, fit)[0] is not None:
            change = words
            break
    asks = smaller_asks(context.asked, context.fixed_length)
    change = change or first_or_none(asks, fits_with_remedies) or room(nearest)
    return too_small(strategy, nearest.gpu, nearest.missing_bytes, change)


def room(fit: MemoryFit) -> str:
    """Return the change of last resort: the room that the Gpu would need."""
    if fit.gpu is None:
        return ""
    need = fit.gpu.free_bytes + fit.missing_bytes
    return sentence("{need} free on {gpu}", need=gib_at_least(need), gpu=fit.gpu.label)

"""Strategies whose ranks each run the whole model: one Gpu, DDP, ZeRO, FSDP.

All ranks need the same, so the smallest free Gpu decides, except in uneven ZeRO-1,
where the optimizer state is shared out by room (split.zero_coalesce).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from placement.domain.offer import GpuOffer
from placement.domain.place import Shortage, choose_equal, least_utilized
from placement.domain.plan import Plan, Refusal
from placement.domain.remedies import (
    Fit,
    Setting,
    first_or_none,
    search,
    smaller_asks,
)
from placement.domain.candidates.hunt import Search, refusal, too_small
from placement.domain.sharding import Sharding, Strategy
from placement.domain.split import zero_coalesce
from placement.domain.timing import StepTime, data_parallel_time
from placement.domain.words import gib, plural, seconds
from placement.domain.workload import Workload

WORTH_RATIO = 0.8
"""A second Plan of a strategy is shown if it needs at most this part of the time."""
NEEDS_TRAINING = ("zero1", "zero1_uneven", "zero2", "fsdp")


@dataclass(frozen=True, slots=True)
class Found:
    """A strategy on chosen Gpus, before it becomes a Plan."""

    setting: Setting
    chosen: tuple[GpuOffer, ...]
    shardings: tuple[Sharding, ...]
    time: StepTime


def single(hunt: Search) -> list[Plan] | Refusal:
    """One Gpu: the least utilized that fits."""

    def place(setting: Setting) -> GpuOffer | Shortage:
        alone = Sharding(offload_optimizer=setting.offload)
        return least_utilized(hunt.offers, hunt.need_bytes(setting, alone))

    def fit(setting: Setting) -> Fit:
        return _fit(place(setting))

    setting, nearest = search(hunt.asked, 1, hunt.limits, fit)
    if setting is None:
        return _refuse(hunt, "single", 1, nearest, fit)
    offer = place(setting)
    assert isinstance(offer, GpuOffer)
    sharding = Sharding(offload_optimizer=setting.offload)
    time = _time(hunt, setting, (offer,), sharding)
    need = hunt.need_bytes(setting, sharding)
    why = [
        f"It fits on one GPU, so nothing has to be sent between GPUs: {offer.label} "
        f"has {gib(offer.free_bytes)} free and about {gib(need)} are needed.",
        f"{offer.label} is the least busy GPU with enough room"
        + (f" ({offer.util_pct:.0f} % busy)." if offer.util_pct is not None else "."),
    ]
    partly = [o for o in hunt.offers if o.memory_total_bytes >= need > o.free_bytes]
    if partly:
        names = ", ".join(one.label for one in partly)
        why.append(f"{names} would do if empty, but only free memory counts.")
    launch = {"microbatch": setting.workload.microbatch()}
    made = hunt.plan(
        "single", setting, (offer,), (sharding,), time, why=why, launch=launch
    )
    return [made]


def data_parallel(hunt: Search, strategy: Strategy) -> list[Plan] | Refusal:
    """DDP, ZeRO-1, ZeRO-2 or FSDP on N equal ranks, the best one or two N."""
    unfit = _not_applicable(hunt, strategy)
    if unfit is not None:
        return unfit
    most = min(hunt.most_gpus, hunt.asked.batch)
    found: list[Found] = []
    nearest: tuple[int, Fit] | None = None
    for count in range(2, most + 1):
        sharding = Sharding(strategy=strategy, data_degree=count)
        one, fit = _equal_ranks(hunt, sharding)
        if one is not None:
            found.append(one)
        elif nearest is None or fit.missing_bytes < nearest[1].missing_bytes:
            nearest = (count, fit)
    if not found:
        count, fit = nearest or (2, Fit(False))
        sharding = Sharding(strategy=strategy, data_degree=count)
        return _refuse(
            hunt,
            strategy,
            count,
            fit,
            lambda setting: _fits_equally(hunt, sharding, setting),
        )
    return [_data_plan(hunt, strategy, one, found) for one in _worth_showing(found)]


def _not_applicable(hunt: Search, strategy: str) -> Refusal | None:
    """Why a strategy makes no sense here, before any memory is counted."""
    if hunt.most_gpus < 2:
        return refusal(strategy, "It needs at least two GPUs of one node.")
    if strategy in NEEDS_TRAINING and not hunt.asked.trains:
        return refusal(strategy, "Inference has no gradients or optimizer to share.")
    if hunt.asked.batch < 2:
        return refusal(
            strategy, "A batch of 1 cannot be shared out; it needs 2 or more."
        )
    if strategy == "zero1" and hunt.asked.optimizer == "sgd":
        return refusal(strategy, "Plain SGD keeps no optimizer state to share out.")
    return None


def _equal_ranks(hunt: Search, sharding: Sharding) -> tuple[Found | None, Fit]:
    count = sharding.data_degree
    setting, nearest = search(
        hunt.asked, count, hunt.limits, lambda s: _fits_equally(hunt, sharding, s)
    )
    if setting is None:
        return None, nearest
    sharding = replace(sharding, offload_optimizer=setting.offload)
    need = hunt.need_bytes(setting, sharding)
    chosen = choose_equal(hunt.offers, count, need)
    assert not isinstance(chosen, Shortage)
    time = _time(hunt, setting, chosen, sharding)
    return Found(setting, chosen, (sharding,) * count, time), nearest


def _fits_equally(hunt: Search, sharding: Sharding, setting: Setting) -> Fit:
    sharding = replace(sharding, offload_optimizer=setting.offload)
    need = hunt.need_bytes(setting, sharding)
    return _fit(choose_equal(hunt.offers, sharding.data_degree, need))


def _fit(placed: object) -> Fit:
    if isinstance(placed, Shortage):
        return Fit(False, placed.missing_bytes, placed.gpu)
    return Fit(True)


def _time(
    hunt: Search,
    setting: Setting,
    chosen: Sequence[GpuOffer],
    sharding: Sharding,
) -> StepTime:
    return data_parallel_time(
        hunt.costs(setting, sharding),
        setting.workload,
        chosen,
        strategy=sharding.strategy,
        offload=setting.offload,
    )


def _worth_showing(found: Sequence[Found]) -> list[Found]:
    """The fewest Gpus with the mildest remedies, and a much faster one if any."""
    first = min(found, key=lambda one: (one.setting.severity[:3], len(one.chosen)))
    fastest = min(
        found, key=lambda one: (one.setting.severity[:2], one.time.total_seconds)
    )
    if fastest.time.total_seconds <= WORTH_RATIO * first.time.total_seconds:
        return [first, fastest]
    return [first]


WHY = {
    "ddp": "Each GPU holds the whole model and takes a part of the batch; only "
    "gradients are averaged between them.",
    "zero1": "Each GPU holds weights and gradients, and 1/N of the optimizer state.",
    "zero2": "Each GPU holds the weights, and 1/N of gradients and optimizer state.",
    "fsdp": "Each GPU keeps 1/N of everything and fetches a layer's weights when it "
    "runs, so even a model larger than a GPU fits.",
    "zero1_uneven": "Each GPU holds weights and gradients; the optimizer state is "
    "shared out by how much room each has.",
}


def _data_plan(
    hunt: Search, strategy: str, one: Found, others: Sequence[Found]
) -> Plan:
    count = len(one.chosen)
    smallest = min(one.chosen, key=lambda offer: offer.free_bytes)
    need = hunt.need_bytes(one.setting, one.shardings[0])
    why = [
        WHY[strategy],
        f"All {count} ranks need about {gib(need)}; the smallest, {smallest.label}, "
        f"has {gib(smallest.free_bytes)} free.",
    ]
    if len({offer.peak_flops * offer.share_ratio for offer in one.chosen}) > 1:
        why.append("The slowest of these GPUs sets the pace of all.")
    fewest = min(others, key=lambda other: len(other.chosen))
    if one is not fewest:
        why.append(
            f"{plural(count, 'GPU')} take {seconds(one.time.total_seconds)} a step, "
            f"{len(fewest.chosen)} would take {seconds(fewest.time.total_seconds)}."
        )
    launch: dict[str, object] = {
        "microbatch": one.setting.workload.microbatch(count),
        "zero_stage": {"zero1": 1, "zero2": 2, "fsdp": 3}.get(strategy, 0),
        "gradient_as_bucket_view": True,
    }
    if strategy == "zero2":
        bucket = max(
            cost.elements for cost in hunt.costs(one.setting, one.shardings[0])
        )
        launch["reduce_bucket_size"] = bucket
        why.append("It needs DeepSpeed in your environment.")
    return hunt.plan(
        strategy,
        one.setting,
        one.chosen,
        one.shardings,
        one.time,
        why=why,
        launch=launch,
    )


def zero1_uneven(hunt: Search) -> list[Plan] | Refusal:
    """ZeRO-1 whose optimizer state is cut by room: for Gpus that are unequally full."""
    strategy = "zero1_uneven"
    unfit = _not_applicable(hunt, "zero1")
    if unfit is not None:
        return refusal(strategy, unfit.reason)
    nearest: Fit | None = None
    kept = replace(hunt.limits, offload=False)
    for count in range(2, min(hunt.most_gpus, hunt.asked.batch) + 1):
        even = Sharding(strategy="zero1", data_degree=count)
        equal, _ = search(
            hunt.asked,
            count,
            kept,
            lambda s, even=even: _fits_equally(hunt, even, s),  # type: ignore[misc]
        )
        chosen = tuple(
            sorted(
                sorted(hunt.offers, key=lambda offer: -offer.free_bytes)[:count],
                key=lambda offer: offer.index,
            )
        )
        setting, fit = search(
            hunt.asked,
            count,
            kept,
            lambda s, chosen=chosen: _fits_unevenly(hunt, chosen, s),  # type: ignore[misc]
        )
        if equal and (setting is None or equal.severity <= setting.severity):
            return refusal(
                strategy, "Equal shares fit just as well (ZeRO-1).", code="not_better"
            )
        if setting is not None:
            return [_uneven_plan(hunt, chosen, setting)]
        if nearest is None or fit.missing_bytes < nearest.missing_bytes:
            nearest = fit
    fit = nearest or Fit(False)
    return too_small(strategy, fit.gpu, fit.missing_bytes, _room(hunt, fit))


def _uneven_shares(
    hunt: Search, chosen: Sequence[GpuOffer], setting: Setting
) -> tuple[float, ...] | None:
    """Shares of the optimizer state per Gpu, with as few pieces as make it fit."""
    count = len(chosen)
    whole = Sharding(strategy="zero1", data_degree=count, share_ratio=1.0)
    none = replace(whole, share_ratio=0.0)
    fixed = hunt.need_bytes(setting, none)
    state = hunt.need_bytes(setting, whole) - fixed
    pieces = count
    while pieces <= 16 * count:
        cut = zero_coalesce(
            shards=pieces,
            shard_bytes=state / pieces,
            fixed_bytes=[fixed] * count,
            free_bytes=[offer.free_bytes for offer in chosen],
            fewest=False,
        )
        enough = all(offer.free_bytes >= fixed for offer in chosen)
        if cut is not None and enough:
            shares = tuple(number / pieces for number in cut.shards)
            if _shares_fit(hunt, chosen, setting, shares):
                return shares
        pieces *= 2
    return None


def _shares_fit(
    hunt: Search,
    chosen: Sequence[GpuOffer],
    setting: Setting,
    shares: Sequence[float],
) -> bool:
    count = len(chosen)
    return all(
        hunt.need_bytes(
            setting, Sharding(strategy="zero1", data_degree=count, share_ratio=share)
        )
        <= offer.free_bytes
        for offer, share in zip(chosen, shares, strict=True)
    )


def _fits_unevenly(hunt: Search, chosen: Sequence[GpuOffer], setting: Setting) -> Fit:
    if _uneven_shares(hunt, chosen, setting) is not None:
        return Fit(True)
    count = len(chosen)
    none = Sharding(strategy="zero1", data_degree=count, share_ratio=0.0)
    fixed = hunt.need_bytes(setting, none)
    whole = hunt.need_bytes(setting, replace(none, share_ratio=1.0)) - fixed
    smallest = min(chosen, key=lambda offer: offer.free_bytes)
    if smallest.free_bytes < fixed:
        return Fit(False, fixed - smallest.free_bytes, smallest)
    room = sum(offer.free_bytes - fixed for offer in chosen)
    largest = max(chosen, key=lambda offer: offer.free_bytes)
    return Fit(False, max(1, whole - room), largest)


def _uneven_plan(hunt: Search, chosen: tuple[GpuOffer, ...], setting: Setting) -> Plan:
    shares = _uneven_shares(hunt, chosen, setting) or ()
    count = len(chosen)
    shardings = tuple(
        Sharding(strategy="zero1", data_degree=count, share_ratio=share)
        for share in shares
    )
    time = _time(hunt, setting, chosen, shardings[0])
    parts = ", ".join(
        f"{offer.label} {share:.0%}"
        for offer, share in zip(chosen, shares, strict=True)
    )
    why = [WHY["zero1_uneven"], f"Shares: {parts}.", "Equal shares would not fit."]
    launch: dict[str, object] = {
        "microbatch": setting.workload.microbatch(count),
        "zero_stage": 1,
        "shares": list(shares),
        "gradient_as_bucket_view": True,
    }
    return hunt.plan(
        "zero1_uneven", setting, chosen, shardings, time, why=why, launch=launch
    )


def _room(hunt: Search, fit: Fit) -> str:
    """The change of last resort: how much room the Gpu would need."""
    if fit.gpu is None:
        return ""
    return f"{gib(fit.gpu.free_bytes + fit.missing_bytes)} free on {fit.gpu.label}"


def _refuse(
    hunt: Search,
    strategy: str,
    count: int,
    nearest: Fit,
    fit: Callable[[Setting], Fit],
) -> Refusal:
    """A Refusal with the smallest change of the question that would fit."""
    fixed = hunt.spec.shape is not None and bool(hunt.spec.shape.image_tokens)

    def fits_with_remedies(workload: Workload) -> bool:
        return search(workload, count, hunt.limits, fit)[0] is not None

    change = ""
    if not hunt.tight:
        asks = smaller_asks(hunt.asked, fixed)
        change = first_or_none(asks, fits_with_remedies)
    change = change or _room(hunt, nearest)
    return too_small(strategy, nearest.gpu, nearest.missing_bytes, change)

"""Tensor parallelism: every layer cut over Gpus that fast links join.

The fewest Gpus come first, then more of them if the model then needs milder remedies,
such as weights in 16 bits, then those of the shortest step.
"""

from collections.abc import Sequence
from dataclasses import replace

from placement.planner.model.sharding import Sharding
from placement.planner.model.spec import ModelSpec
from placement.planner.search.candidates.data_parallel import busy_seconds, room
from placement.planner.search.candidates.explanation import refusal, too_small
from placement.planner.search.candidates.search_context import (
    RankPlacement,
    SearchContext,
    worth_ratio,
)
from placement.planner.search.gpu_selection import Shortage, fastest, room_for
from placement.planner.search.memory_savings import MemoryFit, Setting, as_mild, search
from placement.planner.search.step_time import StepTime, tensor_parallel_time
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.objective import concession
from placement.planner.values.plan import Plan, RejectedStrategy
from placement.planner.values.strategies import TENSOR
from telemetry.protocol.sentences import sentence

NO_FAST_LINKS = sentence(
    "It sends activations within every layer, which needs fast links (NVLink) "
    "between the GPUs; these have none."
)


def tensor(context: SearchContext) -> list[Plan] | RejectedStrategy:
    """Plan every layer cut over t Gpus, t dividing heads and kv heads.

    Training needs fast links between them.
    """
    if context.most_gpus < 2:
        return refusal(TENSOR.key, sentence("It needs at least two GPUs of one node."))
    shape = context.spec.shape
    if shape is None:
        return refusal(
            TENSOR.key,
            sentence(
                "The portal does not know how these layers compute, so it cannot "
                "cut them."
            ),
        )
    groups = context.fast()
    if not context.asked.trains:
        # Decoding sends little, so slow links are priced. The Plan stays inside one
        # node.
        near = [g for g in context.near() if len({offer.node for offer in g}) == 1]
        groups = [*groups, *(g for g in near if g not in groups)]
    widest = min(max((len(group) for group in groups), default=0), context.most_gpus)
    if widest < 2:
        return refusal(TENSOR.key, NO_FAST_LINKS)
    degrees = tensor_degrees(context.spec, widest)
    if shape.state_dim:
        return refusal(
            TENSOR.key,
            sentence("The plans of transformers do not cut the mixers of Mamba."),
        )
    if not degrees:
        return refusal(
            TENSOR.key,
            sentence(
                "{heads} heads and {kv_heads} key/value heads cannot be shared "
                "evenly by 2 to {widest} GPUs.",
                heads=shape.heads,
                kv_heads=shape.kv_heads,
                widest=widest,
            ),
        )
    nearest: MemoryFit | None = None
    made: list[Plan] = []
    for degree in degrees:
        plan, fit = _tensor_plan(context, degree, groups)
        if plan is not None:
            made.append(plan)
        elif nearest is None or fit.missing_bytes < nearest.missing_bytes:
            nearest = fit
    if made:
        mildest = min(made, key=concession)
        quick = min(made, key=lambda one: (one.step_seconds, len(one.shards)))
        kept = [made[0]]
        if concession(mildest) < concession(made[0]):
            kept.append(mildest)
        if quick.step_seconds < worth_ratio(context) * kept[-1].step_seconds:
            kept.append(quick)
        return kept
    fit = nearest or MemoryFit(False)
    return too_small(TENSOR.key, fit.gpu, fit.missing_bytes, room(fit))


def tensor_degrees(spec: ModelSpec, widest: int) -> list[int]:
    """Return numbers of Gpus, from 2 up, over which a layer can be cut."""
    shape = spec.shape
    if shape is None or shape.state_dim:
        # The tensor-parallel plans of transformers leave Mamba mixers whole.
        return []
    return [
        degree
        for degree in range(2, widest + 1)
        if shape.heads % degree == 0
        and shape.kv_heads % degree == 0
        and shape.hidden % degree == 0
    ]


def _tensor_plan(
    context: SearchContext, degree: int, groups: Sequence[Sequence[GpuOffer]]
) -> tuple[Plan | None, MemoryFit]:
    wide = [group for group in groups if len(group) >= degree]
    base = Sharding(strategy=TENSOR.key, tensor_degree=degree)

    def sharding_of(setting: Setting) -> Sharding:
        return replace(base, offload_optimizer=setting.offload)

    def fit(setting: Setting) -> MemoryFit:
        need = context.need_bytes(setting, sharding_of(setting))
        short: list[Shortage] = []
        for group in wide:
            lacking = room_for(group, degree, need)
            if lacking is None:
                return MemoryFit(True)
            short.append(lacking)
        nearest = min(short, key=lambda one: one.missing_bytes)
        return MemoryFit(False, nearest.missing_bytes, nearest.gpu)

    setting, nearest = search(context.asked, 1, context.freedom(), fit)
    if setting is None:
        return None, nearest
    settings = [setting]
    if context.greedy:
        settings = as_mild(context.asked, setting, 1, context.freedom(), fit)
    options = []
    for setting in settings:
        sharding = sharding_of(setting)
        need = context.need_bytes(setting, sharding)
        for group in wide:
            fitting = [offer for offer in group if offer.free_bytes >= need]
            if len(fitting) >= degree:
                chosen = fastest(fitting, degree)
                time = _time(context, setting, sharding, chosen)
                options.append((time, chosen, setting))
    time, chosen, setting = min(
        options,
        key=lambda one: (
            one[0].total_seconds,
            [(offer.node, offer.index, offer.uuid) for offer in one[1]],
        ),
    )
    sharding = sharding_of(setting)
    why = [
        sentence(
            "Every layer is cut over {degree} GPUs joined by {link}. Each holds "
            "1/{degree} of the large matrices.",
            degree=degree,
            link=context.link(chosen).words,
        ),
        sentence(
            "Activations are summed between the GPUs several times in every layer."
        ),
    ]
    launch = {"microbatch": setting.workload.microbatch()}
    busy = time.compute_seconds
    seats = [
        RankPlacement(offer, sharding, tensor_rank=part, busy_seconds=busy)
        for part, offer in enumerate(chosen)
    ]
    made = context.plan(TENSOR.key, setting, seats, time, why=why, launch=launch)
    return made, MemoryFit(True)


def _time(
    context: SearchContext,
    setting: Setting,
    sharding: Sharding,
    chosen: Sequence[GpuOffer],
) -> StepTime:
    return tensor_parallel_time(
        context.work(setting, sharding),
        setting.workload,
        busy=busy_seconds(context, setting, sharding, chosen),
        degree=len(chosen),
        link=context.link(chosen),
    )

"""Pipelines: the model cut into stages of unequal length over unequal Gpus."""

from collections.abc import Iterator, Sequence

from placement.domain.estimate import LIKELY_RATIO, outside_bytes
from placement.domain.offer import GpuOffer
from placement.domain.pipeline import (
    Memory,
    PipelineProblem,
    PipelineSplit,
    split_pipeline,
)
from placement.domain.plan import Plan, Refusal
from placement.domain.remedies import (
    Setting,
    first_or_none,
    smaller_asks,
    stages,
)
from placement.domain.candidates.hunt import (
    CLASS_ROUNDING_BYTES,
    Search,
    refusal,
    too_small,
)
from placement.domain.sharding import Sharding
from placement.domain.split import ChainProblem, classes_of, split_chain
from placement.domain.states import optimizer_temporary_bytes, widths
from placement.domain.timing import (
    flops_per_second,
    layer_flops,
    link_bytes_per_second,
    pipeline_time,
)
from placement.domain.words import gib, plural
from placement.domain.workload import Workload

MOST_CLASSES = 8
"""More kinds of unequal Gpus than this are not searched: the roomiest are."""
PIECES_PER_STAGE = 4
"""Microbatches per stage to aim for: a bubble of about a fifth."""
WORTH_RATIO = 0.8


def pipeline(hunt: Search) -> list[Plan] | Refusal:
    """Stages of unequal length over Gpus of unequal room and speed, 1F1B."""
    if hunt.most_gpus < 2:
        return refusal("pipeline", "It needs at least two GPUs of one node.")
    if len(hunt.spec.layers) < 2:
        return refusal("pipeline", "A model of one layer cannot be cut into stages.")
    offers = _few_classes(hunt.offers)
    for setting, pieces in _settings(hunt, hunt.asked):
        problem = _problem(hunt, setting, pieces, offers)
        fastest = split_pipeline(problem, most_stages=hunt.most_gpus, least_stages=2)
        if fastest is None:
            continue
        fewest = fastest
        for count in range(2, len(fastest.pieces)):
            smaller = split_pipeline(problem, most_stages=count, least_stages=2)
            if smaller is not None:
                fewest = smaller
                break
        splits = [fewest]
        if fastest.iteration_seconds <= WORTH_RATIO * fewest.iteration_seconds:
            splits.append(fastest)
        return [
            _pipeline_plan(hunt, setting, problem, split, offers) for split in splits
        ]
    return _refuse_pipeline(hunt, offers)


def gpipe_note(hunt: Search, plan: Plan) -> Refusal:
    """Why 1F1B and not GPipe: the same time, but all microbatches are kept."""
    pieces = plan.launch["microbatches"]
    setting = Setting(plan.workload, bool(plan.launch["offload_optimizer"]))
    worst: tuple[int, str, str] | None = None
    for shard in plan.shards:
        sharding = Sharding(
            strategy="gpipe",
            first_layer=shard.first_layer,
            last_layer=shard.last_layer,
            in_flight=pieces,
            microbatches=pieces,
            offload_optimizer=setting.offload,
        )
        need = hunt.need_bytes(setting, sharding)
        missing = need - shard.free_bytes
        if worst is None or missing > worst[0]:
            worst = (missing, shard.gpu_label, shard.gpu_uuid)
    missing, label, uuid = worst or (0, "", "")
    reason = (
        f"1F1B takes the same time and keeps fewer microbatches; GPipe keeps all "
        f"{pieces}"
    )
    reason += f" and lacks {gib(missing)} on {label}." if missing > 0 else "."
    return Refusal(
        strategy="gpipe",
        title="Layers in stages (pipeline, GPipe)",
        code="too_small" if missing > 0 else "not_better",
        reason=reason,
        gpu_label=label if missing > 0 else "",
        gpu_uuid=uuid if missing > 0 else "",
        missing_bytes=max(0, missing),
        cheapest_change="the 1F1B schedule",
    )


def _settings(hunt: Search, asked: Workload) -> Iterator[tuple[Setting, int]]:
    """Remedies, mildest first, each with few and with all possible microbatches."""
    for stage in stages(asked, hunt.limits):
        workload = stage.workload
        if not workload.trains:
            yield stage, 1
            continue
        aim = max(workload.accumulation, PIECES_PER_STAGE * hunt.most_gpus)
        whole = Setting(workload.but(accumulation=1), stage.offload)
        counts = sorted({min(workload.batch, aim), workload.batch})
        for pieces in counts if hunt.limits.accumulation else counts[:1]:
            yield whole, pieces


def _few_classes(offers: Sequence[GpuOffer]) -> tuple[GpuOffer, ...]:
    """Keep the roomiest Gpus if there are too many different ones to search."""
    ranked = sorted(offers, key=lambda offer: (-offer.free_bytes, offer.index))
    kept: list[GpuOffer] = []
    keys: set[tuple[int, float]] = set()
    for offer in ranked:
        key = (_rounded(offer.free_bytes), offer.peak_flops * offer.share_ratio)
        if key in keys or len(keys) < MOST_CLASSES:
            keys.add(key)
            kept.append(offer)
    return tuple(sorted(kept, key=lambda offer: offer.index))


def _rounded(free_bytes: int) -> int:
    return free_bytes // CLASS_ROUNDING_BYTES * CLASS_ROUNDING_BYTES


def _problem(
    hunt: Search,
    setting: Setting,
    pieces: int,
    offers: Sequence[GpuOffer],
) -> PipelineProblem:
    """Bytes and seconds of each layer, as pipeline.py wants them.

    Needs here are never below what phases.py finds for the finished stages: states,
    kept microbatches and the largest moment are added up, as 1F1B has them at once.
    """
    workload = setting.workload
    costs = hunt.costs(setting, Sharding(strategy="pipeline", microbatches=pieces))
    width = widths(workload)
    states, moments, steps = [], [], []
    for cost in costs:
        optimizer = 0 if setting.offload else cost.optimizer_bytes
        states.append(
            float(
                cost.parameter_bytes
                + cost.gradient_bytes
                + optimizer
                + cost.cache_bytes
            )
        )
        peak = max(cost.forward_peak_bytes, cost.backward_peak_bytes)
        temporary = 0
        if workload.trains and not setting.offload:
            temporary = optimizer_temporary_bytes(
                workload, elements=cost.elements, largest=cost.largest
            )
        foreach = workload.optimizer_loop == "foreach"
        steps.append(float(temporary if foreach else 0))
        moments.append(float(max(peak - cost.kept_bytes, 0 if foreach else temporary)))
    owner = costs[0]
    tied = sum(cost.tied_elements for cost in costs)
    per_element = width.parameter
    if workload.trains:
        per_element += width.gradient + width.moment
        if not setting.offload:
            per_element += owner.optimizer_bytes / max(1, owner.elements)
    return PipelineProblem(
        state_bytes=states,
        activation_bytes=[float(cost.kept_bytes) for cost in costs],
        seconds=[layer_flops(cost, workload) / 1e12 for cost in costs],
        free_bytes=[_rounded(offer.free_bytes) for offer in offers],
        speeds=[
            float(f"{flops_per_second(offer, workload) / 1e12:.4g}") for offer in offers
        ],
        microbatches=pieces,
        moment_bytes=moments,
        copy_bytes=[float(cost.weight_copy_bytes) for cost in costs],
        step_bytes=steps,
        fixed_bytes=float(outside_bytes(workload)),
        tied_bytes=tied * per_element,
        scale=1.0 if hunt.tight or workload.accelerator == "cpu" else LIKELY_RATIO,
    )


def _pipeline_plan(
    hunt: Search,
    setting: Setting,
    problem: PipelineProblem,
    split: PipelineSplit,
    offers: Sequence[GpuOffer],
) -> Plan:
    pieces = problem.microbatches
    count = len(split.pieces)
    chosen = [offers[piece.gpu] for piece in split.pieces]
    shardings = [
        Sharding(
            strategy="pipeline",
            first_layer=piece.first,
            last_layer=piece.last,
            in_flight=problem.in_flight(stage, count),
            microbatches=pieces,
            offload_optimizer=setting.offload,
        )
        for stage, piece in enumerate(split.pieces)
    ]
    costs = hunt.costs(setting, shardings[0])
    border = max(costs[piece.last - 1].output_bytes for piece in split.pieces[:-1])
    directions = 2 if setting.workload.trains else 1
    sent = (pieces + count - 1) * directions * border / link_bytes_per_second(chosen)
    time = pipeline_time(split.stage_seconds, pieces, sent)
    return hunt.plan(
        "pipeline",
        setting,
        chosen,
        shardings,
        time,
        why=_pipeline_why(split, chosen, pieces),
        launch={
            "schedule": "1f1b",
            "microbatches": pieces,
            "microbatch": -(-setting.workload.batch // pieces),
            "bounds": [*(piece.first for piece in split.pieces), len(costs)],
        },
    )


def _pipeline_why(
    split: PipelineSplit, chosen: Sequence[GpuOffer], pieces: int
) -> list[str]:
    parts = ", ".join(
        f"{offer.label} layers {piece.first} to {piece.last - 1}"
        for offer, piece in zip(chosen, split.pieces, strict=True)
    )
    why = [
        f"The model is cut into {plural(len(chosen), 'stage')}: {parts}.",
        f"The batch runs through in {plural(pieces, 'piece')}, so that all stages "
        "work at once; between stages only activations are sent.",
        "The first stage keeps the most pieces in memory, the last keeps one: GPUs "
        "are ordered accordingly.",
    ]
    if split.exact:
        why.append("No other cut and order of these GPUs gives a shorter step.")
    else:
        why.append("No other cut and order makes the slowest stage faster.")
    return why


def _refuse_pipeline(hunt: Search, offers: Sequence[GpuOffer]) -> Refusal:
    """The least overloaded cut, with every remedy: which Gpu lacks how much."""
    if hunt.tight:
        return too_small("pipeline", None, 0, "")
    *_, (setting, pieces) = _settings(hunt, hunt.asked)
    problem = _problem(hunt, setting, pieces, offers)
    frees = [float(offer.free_bytes) for offer in offers]
    count = min(hunt.most_gpus, len(offers), len(hunt.spec.layers))
    groups = classes_of([_rounded(offer.free_bytes) for offer in offers])
    memory = Memory(problem, [int(frees[group[0]]) for group in groups])

    def load(first: int, last: int, kind: int, stage: int) -> float:
        need = memory.need_bytes(first, last, problem.in_flight(stage, count))
        return need / max(1, memory.frees[kind])

    chain = ChainProblem(len(hunt.spec.layers), groups, load, stages=count)
    split = split_chain(chain, low=0.0, high=float("1e18"))
    gpu, missing = None, 0
    if split is not None:
        worst = max(split.pieces, key=lambda piece: piece.load)
        gpu = offers[worst.gpu]
        missing = max(1, int((worst.load - 1) * gpu.free_bytes))
    change = _smaller_pipeline(hunt, offers)
    if not change and gpu is not None:
        change = f"{gib(gpu.free_bytes + missing)} free on {gpu.label}"
    return too_small("pipeline", gpu, missing, change)


def _smaller_pipeline(hunt: Search, offers: Sequence[GpuOffer]) -> str:
    fixed = hunt.spec.shape is not None and bool(hunt.spec.shape.image_tokens)

    def fits(workload: Workload) -> bool:
        *_, (setting, pieces) = _settings(hunt, workload)
        problem = _problem(hunt, setting, pieces, offers)
        found = split_pipeline(problem, most_stages=hunt.most_gpus, least_stages=2)
        return found is not None

    return first_or_none(smaller_asks(hunt.asked, fixed), fits)

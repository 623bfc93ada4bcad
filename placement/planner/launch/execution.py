"""Convert a Plan to an Execution: the work of each process of the ready recipe.

The recipe's model has an embedding, a number of blocks and a head. As a Plan counts,
these are layers + 2 pieces in a row. A Plan for a model of another length keeps its
proportions: its bounds are scaled, and `scaled_from` has the original length. Plans
that the runtime cannot run are refused here in words, before anything starts. Both the
web and the node call this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placement.planner.launch.backends import DEEPSPEED, TORCH, why_not_deepspeed
from placement.planner.launch.pipeline_families import (
    why_not_adapters,
    why_not_family,
    why_not_stages,
)
from placement.planner.launch.quantized_bases import (
    AS_PLANNED,
    FULL,
    NEEDS_ADAPTERS,
    planned_form,
    why_not_quantized,
)
from placement.planner.launch.tensor_families import why_not_tensor
from placement.planner.values.errors import PlanInvalid
from placement.planner.values.plan import Plan
from placement.planner.values.strategies import (
    DDP,
    HSDP,
    SINGLE,
    STRATEGIES,
    Axis,
    Strategy,
    strategy_of,
)
from telemetry.protocol.sentences import joined, sentence

RUNNABLE_STRATEGIES = tuple(
    one.key for one in STRATEGIES.values() if TORCH in one.backends
)
"""Strategies that the recipe can run by a Plan, unless `why_not` returns a reason."""
PRECISIONS = ("fp32", "bf16", "autocast_bf16", "autocast_fp16")
OPTIMIZERS = ("adamw", "adam", "sgd", "momentum")
CHECKPOINTING = ("none", "full")
OFFLOADS = ("none", "cpu", "nvme")
WHOLE: Mapping[str, Any] = {"layers": 1, "heads": 1, "seq": 1}
"""Sizes of a model that is not cut. Only a model that is cut has others."""


class NotRunnable(Exception):
    """A sound Plan that the runtime cannot run. The text gives the reason."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The position of one rank."""

    stage: int
    replica: int
    tensor_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """All facts of the Plan that a process needs."""

    strategy: str
    places: tuple[RankPlace, ...]
    """By rank."""
    stages: int
    replicas: int
    tensor_degree: int
    sequence_parallel: bool
    zero_stage: int
    shares: tuple[float, ...]
    """Uneven ZeRO-1: part of the optimizer state by rank; empty otherwise."""
    schedule: str
    """"" without stages, else 1f1b, gpipe, interleaved."""
    bounds: tuple[int, ...]
    """First layer of each piece of the model, and the end."""
    microbatches: int
    accumulation: int
    precision: str
    optimizer: str
    optimizer_loop: str
    checkpointing: bool
    offload: bool
    """The optimizer's state is in the node's memory and is stepped there."""
    on_drive: bool = False
    """That state is in mapped files instead."""
    streams: bool = False
    """The weights are there too. Each layer's are copied to the single Gpu while it
    runs.
    """
    backend: str = TORCH
    """The library that runs it (``backends``)."""
    weights: str = FULL
    """Form of the frozen weights: full, or int8 or nf4 below adapters."""
    keeps_weights_away: bool = False
    """The Plan also keeps the weights in the node's memory or on its drive."""
    shard_degree: int = 0
    """Consecutive replicas among which FSDP shares one copy of the weights (HSDP); 0:
    all of them.
    """
    scaled_from: int | None = None
    """Number of layers of the Plan's model, if the recipe's model has another
    number.
    """

    @property
    def shares_out(self) -> bool:
        """Return whether FSDP holds the weights."""
        return self.backend == TORCH and (self.zero_stage >= 2 or self.streams)

    @property
    def ranks(self) -> int:
        """Return the total number of processes."""
        return len(self.places)

    def pieces_of(self, stage: int) -> tuple[int, ...]:
        """Return the pieces of the model on one stage: a single one, or every p-th."""
        return tuple(range(stage, len(self.bounds) - 1, self.stages))


def why_not(plan: Mapping[str, Any]) -> str:
    """Return why the recipe cannot run a Plan (as JSON); "" if it can.

    >>> why_not({"strategy": "zero1", "launch": {"task": "train"}})
    ''
    """
    launch = plan.get("launch", {})
    strategy = str(plan.get("strategy", ""))
    asked = {
        "precision": (launch.get("precision", "fp32"), PRECISIONS),
        "optimizer": (launch.get("optimizer", "adamw"), OPTIMIZERS),
        "checkpointing": (launch.get("checkpointing", "none"), CHECKPOINTING),
    }
    if launch.get("task", "train") != "train":
        return sentence("it is for inference, and the recipe trains")
    if strategy not in RUNNABLE_STRATEGIES:
        return sentence(
            "no recipe runs the strategy {strategy}", strategy=strategy[:40]
        )
    for name, (value, known) in asked.items():
        if value not in known:
            return sentence(
                "the recipe runs {name} {known}, not {value}",
                name=name,
                known=", ".join(known),
                value=str(value)[:40],
            )
    form = planned_form(plan)
    if form != FULL and (why := why_not_quantized(form, STRATEGIES[strategy], launch)):
        return why
    return _why_not_offload(STRATEGIES[strategy], launch)


def _why_not_offload(strategy: Strategy, launch: Mapping[str, Any]) -> str:
    where = launch.get("offload", "none")
    if where not in OFFLOADS:
        return sentence("it offloads to {where}", where=str(where)[:40])
    if where == "none" and not launch.get("offload_optimizer"):
        return ""
    if int(launch.get("tensor_degree", 1)) > 1:
        return sentence("it offloads what tensor parallelism cuts, and torch does not")
    kept_away = strategy.shares_gradients or strategy.axis is Axis.NONE
    if launch.get("offload_parameters") and not kept_away:
        return sentence(
            "it keeps the weights in the node's memory, which the recipe does for "
            "one GPU, or where ZeRO-2 or ZeRO-3 (FSDP) shares them out"
        )
    return ""


def execution_of(plan: Plan, settings: Mapping[str, Any]) -> Execution:
    """Return the work of the recipe's processes for a Plan, with the recipe's settings.

    Args:
        settings: layers, hidden, heads and seq of the recipe's model, backend, and the
            form of its weights if it can have quantized ones.

    Raises:
        NotRunnable: with the reason in words.
        PlanInvalid: its ranks do not form a grid.
    """
    asked = {"strategy": plan.strategy, "launch": plan.launch}
    backend = str(settings.get("backend", TORCH))
    reason = why_not(asked)
    if not reason and backend == DEEPSPEED:
        reason = why_not_deepspeed(asked)
    form, planned = str(settings.get("weights", FULL)), planned_form(asked)
    if not reason and planned not in (FULL, form):
        reason = sentence(
            "its weights are quantized ({weights}), and those of the job are not",
            weights=planned,
        )
    if reason:
        raise NotRunnable(reason)
    launch = plan.launch
    staged = bool(launch.get("schedule"))
    width = int(launch.get("tensor_degree", 1))
    along = bool(launch.get("sequence_parallel")) and width > 1
    _check_width(width, settings, along=along)
    count = int(settings["layers"]) + 2
    bounds: Sequence[int] = launch["bounds"] if staged else (0, count)
    own = plan.layer_count if staged else count
    where = launch.get("offload", "none")
    made = Execution(
        strategy=plan.strategy,
        places=tuple(
            RankPlace(shard.stage, shard.replica, shard.tensor_rank)
            for shard in plan.by_process
        ),
        stages=int(launch.get("pipeline_degree", 1)),
        replicas=int(launch.get("data_degree", 1)),
        tensor_degree=width,
        sequence_parallel=along,
        zero_stage=int(launch.get("zero_stage", 0)),
        shard_degree=_shard_degree(plan),
        shares=_shares(plan),
        schedule=str(launch.get("schedule", "")),
        bounds=scaled(bounds, count),
        microbatches=int(launch.get("microbatches", 1)) if staged else 1,
        accumulation=int(launch.get("accumulation", 1)),
        precision=launch["precision"],
        optimizer=launch["optimizer"],
        optimizer_loop=launch.get("optimizer_loop", "foreach"),
        checkpointing=launch["checkpointing"] == "full",
        offload=bool(launch.get("offload_optimizer")) or where != "none",
        on_drive=where == "nvme",
        streams=plan.strategy == SINGLE.key and bool(launch.get("offload_parameters")),
        backend=backend,
        weights=form,
        keeps_weights_away=bool(launch.get("offload_parameters")),
        scaled_from=own if own != count else None,
    )
    _check_grid(made)
    return made


def _shard_degree(plan: Plan) -> int:
    if plan.strategy != HSDP.key:
        return 0
    return int(plan.launch.get("shard_degree", 1))


def _shares(plan: Plan) -> tuple[float, ...]:
    """The Plan has them by rank. Processes are counted Node by Node."""
    shares = plan.launch.get("shares", ())
    if not shares or not plan.spans_nodes:
        return tuple(shares)
    return tuple(shares[shard.rank] for shard in plan.by_process)


def _check_width(width: int, settings: Mapping[str, Any], *, along: bool) -> None:
    heads, tokens = int(settings["heads"]), int(settings["seq"])
    if heads % width:
        raise NotRunnable(
            sentence(
                "{width} GPUs share every layer, so {width} must divide the {count} "
                "heads",
                width=width,
                count=heads,
            )
        )
    if along and tokens % width:
        raise NotRunnable(
            sentence(
                "{width} GPUs share every layer, so {width} must divide the {count} "
                "tokens of a sequence",
                width=width,
                count=tokens,
            )
        )


def execution_of_own(plan: Plan, backend: str = TORCH) -> Execution:
    """Return the Execution for a user's own module, which is not cut.

    Raises:
        NotRunnable: the Plan has pipeline stages, tensor parallelism or checkpointing,
            which need changes in the module's code.
    """
    if not strategy_of(plan.strategy).keeps_model_whole:
        raise NotRunnable(
            sentence(
                "the recipe cannot cut your own model into stages or parts of "
                "layers; this needs your own script"
            )
        )
    if plan.launch["checkpointing"] != "none":
        raise NotRunnable(sentence("your model's own code must do the checkpointing"))
    return execution_of(plan, {**WHOLE, "backend": backend})


def execution_of_images(plan: Plan, spec: Mapping[str, Any] | None = None) -> Execution:
    """Return the Execution for a Hugging Face image classifier. Its layers may be cut.

    Args:
        plan: the Plan.
        spec: the Plan's ModelSpec (as JSON). None: the node checks the model itself.

    Raises:
        NotRunnable: the Plan cuts the model in a way that the recipe does not, or
            trains adapters.
        PlanInvalid: its ranks do not form a grid.
    """
    if plan.launch.get("schedule") or plan.launch.get("sequence_parallel"):
        raise NotRunnable(
            sentence(
                "the recipe cannot cut an image classifier into stages or parts of "
                "sequences"
            )
        )
    if ((spec or {}).get("shape") or {}).get("lora_rank"):
        raise NotRunnable(
            sentence("it has LoRA adapters, and the recipe trains all weights")
        )
    return execution_of(plan, {**WHOLE, "heads": _tensor_degree(plan, spec)})


def execution_of_pretrained(
    plan: Plan, settings: Mapping[str, Any], spec: Mapping[str, Any] | None = None
) -> Execution:
    """Return the Execution for a Hugging Face model. Its layers may be cut.

    Args:
        plan: the Plan.
        settings: seq of the recipe, and the rank of adapters and the form of the
            weights where it has them.
        spec: the Plan's ModelSpec (as JSON). None: the node checks the model itself.

    Raises:
        NotRunnable: the Plan cuts the model in a way that the recipe does not.
        PlanInvalid: its ranks do not form a grid.
    """
    form = _form_of_weights(plan, settings, spec)
    if plan.launch.get("schedule"):
        return _execution_of_stages(plan, settings, spec)
    width = _tensor_degree(plan, spec)
    sizes = {"heads": width, "seq": settings["seq"], "weights": form}
    return execution_of(plan, {**WHOLE, **sizes})


def _tensor_degree(plan: Plan, spec: Mapping[str, Any] | None) -> int:
    """Return how many GPUs share every layer of a model without stages.

    Raises NotRunnable if the recipe cannot cut its layers so.
    """
    width = int(plan.launch.get("tensor_degree", 1))
    if width > 1 and int(plan.launch.get("zero_stage", 0)) >= 2:
        raise NotRunnable(
            sentence(
                "the recipe cannot cut the layers of this model and also share out "
                "its gradients"
            )
        )
    if why := _why_not_tensor(plan.launch, spec):
        raise NotRunnable(why)
    return width


def _why_not_tensor(launch: Mapping[str, Any], spec: Mapping[str, Any] | None) -> str:
    """Return why the layers of a model (as JSON) cannot be cut; "": they can."""
    width = int(launch.get("tensor_degree", 1))
    if width < 2 or spec is None:
        return ""
    shape = spec.get("shape") or {}
    heads = int(shape.get("heads", 1))
    kv_heads = int(shape.get("kv_heads", heads))
    along = bool(launch.get("sequence_parallel"))
    family = str(spec.get("family"))
    return why_not_tensor(family, heads, kv_heads, width, along=along)


def _form_of_weights(
    plan: Plan, settings: Mapping[str, Any], spec: Mapping[str, Any] | None
) -> str:
    """Return the form of the weights of a Hugging Face model. Raises NotRunnable."""
    form = str(settings.get("weights", AS_PLANNED))
    if form == AS_PLANNED:
        form = planned_form({"launch": plan.launch}, spec)
    if form == FULL:
        return form
    shape = (spec or {}).get("shape") or {}
    rank = settings.get("lora_rank", 0)
    # A recipe without this setting trains no adapters.
    if not rank and "lora_rank" in settings:
        rank = shape.get("lora_rank")
    why = why_not_quantized(form, strategy_of(plan.strategy), plan.launch)
    if why or not rank:
        raise NotRunnable(why or NEEDS_ADAPTERS)
    return form


def _execution_of_stages(
    plan: Plan, settings: Mapping[str, Any], spec: Mapping[str, Any] | None
) -> Execution:
    """Return the Execution for stages of a Hugging Face model. Raises NotRunnable."""
    known = spec or {}
    shape = known.get("shape") or {}
    trains_adapters = settings.get("lora_rank") or shape.get("lora_rank")
    width = int(plan.launch.get("tensor_degree", 1))
    why = why_not_stages(plan.launch)
    if not why and known:
        why = why_not_family(str(known.get("family")))
        why = why or _why_not_tensor(plan.launch, known)
    if not why and trains_adapters:
        why = why_not_adapters(plan.launch["bounds"])
    if why:
        raise NotRunnable(why)
    sizes = {"layers": plan.layer_count - 2, "heads": width, "seq": settings["seq"]}
    return execution_of(plan, {**WHOLE, **sizes})


def execution_on_node(plan: Plan, settings: Mapping[str, Any]) -> Execution:
    """Return the Execution for a Hugging Face model where no Plan can be made.

    Args:
        plan: the Plan.
        settings: seq of the recipe.

    Raises:
        NotRunnable: as `execution_of_pretrained`, with the Plans that can be chosen.
    """
    try:
        return execution_of_pretrained(plan, settings)
    except NotRunnable as error:
        raise not_cut(str(error)) from error


def not_cut(why: str) -> NotRunnable:
    """Return the refusal of a Plan that cuts a model, with the Plans that do not."""
    whole = (
        one.title
        for one in STRATEGIES.values()
        if one.keeps_model_whole and one.key in RUNNABLE_STRATEGIES
    )
    return NotRunnable(
        sentence(
            "{why}; choose a plan of: {whole}",
            why=why,
            whole=joined(whole, ", "),
        )
    )


def execution_without_plan(replicas: int, *, layers: int = 1) -> Execution:
    """Return the Execution of one process, or of copies of the model: fp32, AdamW."""
    return Execution(
        strategy=DDP.key if replicas > 1 else SINGLE.key,
        places=tuple(RankPlace(0, replica, 0) for replica in range(replicas)),
        stages=1,
        replicas=replicas,
        tensor_degree=1,
        sequence_parallel=False,
        zero_stage=0,
        shares=(),
        schedule="",
        bounds=(0, layers),
        microbatches=1,
        accumulation=1,
        precision="fp32",
        optimizer="adamw",
        optimizer_loop="foreach",
        checkpointing=False,
        offload=False,
    )


def scaled(bounds: Sequence[int], count: int) -> tuple[int, ...]:
    """Return proportional bounds for a model of `count` layers, without an empty piece.

    Raises NotRunnable if there are more pieces than layers.

    >>> scaled([0, 10, 14], 4)
    (0, 3, 4)
    """
    pieces = len(bounds) - 1
    if pieces > count:
        raise NotRunnable(
            sentence(
                "the plan cuts the model into {pieces} pieces; with {count} blocks "
                "there are only {layers} layers: set at least {least} blocks",
                pieces=pieces,
                count=count - 2,
                layers=count,
                least=pieces - 2,
            )
        )
    if bounds[-1] == count:
        return tuple(bounds)
    found = [0]
    for place, bound in enumerate(bounds[1:], 1):
        wanted = round(bound * count / bounds[-1])
        least, most = found[-1] + 1, count - (pieces - place)
        found.append(min(max(wanted, least), most))
    return tuple(found)


def parts_by_share(sizes: Sequence[int], shares: Sequence[float]) -> list[list[int]]:
    """Return the tensors of each rank: whole ones, largest first, to the rank that
    lacks most.

    Longest processing time first (Graham 1969) on machines of unequal speed: no rank
    exceeds its share by more than one tensor.

    >>> parts_by_share([5, 1, 1, 1], [0.6, 0.4])
    [[0], [1, 2, 3]]
    """
    whole = sum(sizes)
    loads = [0] * len(shares)
    parts: list[list[int]] = [[] for _ in shares]
    for number in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        lacks = [whole * s - load for s, load in zip(shares, loads, strict=True)]
        rank = max(range(len(shares)), key=lambda r: (lacks[r], -r))
        parts[rank].append(number)
        loads[rank] += sizes[number]
    return parts


def _check_grid(made: Execution) -> None:
    cells = {(p.stage, p.replica, p.tensor_rank) for p in made.places}
    wanted = {
        (stage, replica, place)
        for stage in range(made.stages)
        for replica in range(made.replicas)
        for place in range(made.tensor_degree)
    }
    problems = []
    if cells != wanted or len(made.places) != len(wanted):
        problems.append(
            sentence(
                "{places} ranks do not fill {stages} stages x {replicas} copies x "
                "{tensor_degree}",
                places=len(made.places),
                stages=made.stages,
                replicas=made.replicas,
                tensor_degree=made.tensor_degree,
            )
        )
    if (len(made.bounds) - 1) % made.stages:
        problems.append(
            sentence(
                "{bounds} pieces on {stages} stages are not equal",
                bounds=len(made.bounds) - 1,
                stages=made.stages,
            )
        )
    if made.shard_degree and made.replicas % made.shard_degree:
        problems.append(
            sentence(
                "{replicas} copies cannot be divided into groups of {shard_degree}",
                shard_degree=made.shard_degree,
                replicas=made.replicas,
            )
        )
    if made.shares and len(made.shares) != made.ranks:
        problems.append(
            sentence(
                "{shares} shares for {ranks} ranks",
                shares=len(made.shares),
                ranks=made.ranks,
            )
        )
    if problems:
        raise PlanInvalid(problems)

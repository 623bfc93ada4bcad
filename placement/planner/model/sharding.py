"""The part of a model's work that one rank has: the strategy and its degrees.

A Sharding describes one rank, not a whole job. Raises WorkloadInvalid by field if its
own numbers contradict each other. `check_fit` checks whether a model can be cut this
way.
"""

from dataclasses import dataclass
from typing import get_args

from placement.planner.model.spec import ModelSpec
from placement.planner.values.errors import WorkloadInvalid
from placement.planner.values.strategies import (
    RANK_STRATEGIES,
    SINGLE,
    STRATEGIES,
    Axis,
    Engine,
    Schedule,
)
from placement.planner.values.workload import Workload
from telemetry.protocol.sentences import sentence

MAX_DEGREE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """The part of the work that one rank has."""

    strategy: str = SINGLE.key
    """One of RANK_STRATEGIES."""
    data_degree: int = 1
    """Replicas that share the batch."""
    tensor_degree: int = 1
    first_layer: int = 0
    last_layer: int | None = None
    """One past the last layer of this rank's stage; None: to the end."""
    in_flight: int = 1
    """Microbatches whose activations this stage keeps at once (1F1B: p - i)."""
    microbatches: int = 1
    """Pipeline: number of pieces into which one replica's batch is cut."""
    share_ratio: float | None = None
    """Uneven ZeRO-1: this rank's part of the optimizer state; None: 1 / data_degree."""
    offload_optimizer: bool = False
    """Optimizer state and its step are in the node's memory (Workload.offload too)."""
    bucket_elements: int | None = None
    """Elements of the reduce bucket (DeepSpeed's `reduce_bucket_size`); None: sized
    from the model. DeepSpeed's own default is 5e8."""
    bucket_view: bool = True
    """DDP: gradients are views of the buckets; False: buckets exist besides them."""
    zero_stage: int = 0
    """hybrid: the ZeRO stage of the replicas, 0 to 3 (0: plain data parallelism)."""
    sequence_parallel: bool = False
    """Norms and dropouts between tensor-parallel regions work on 1/t of the tokens."""
    pipeline_degree: int = 1
    """Number of stages of the pipeline, of which this rank has one or several."""
    pipeline_schedule: Schedule = "1f1b"
    virtual_stages: int = 1
    """interleaved: pieces of the model on each rank."""
    chunks: tuple[tuple[int, int], ...] = ()
    """interleaved: (first, one past last) layer of each piece of this rank; empty:
    first_layer and last_layer are its only piece.
    """
    expert_degree: int = 1
    """Experts of a mixture are spread over this many of the replicas."""
    expert_tensor_degree: int | None = None
    """Ranks that share one expert; None: as many as share a layer."""
    context_degree: int = 1
    """Ranks that share each sequence. Each has a part of its tokens."""
    replicate_degree: int = 1
    """hsdp: groups of replicas that each hold the whole model."""
    engine: Engine = "auto"
    """The library whose buffers are counted. auto: DeepSpeed for zero2 and zero3, else
    torch.
    """
    overlap: bool = False
    """DeepSpeed's overlap_comm: two reduce buckets in turn."""

    def __post_init__(self) -> None:
        problems: dict[str, str] = {}
        _check_words(self, problems)
        _check_numbers(self, problems)
        if not problems:
            _check_together(self, problems)
        if problems:
            raise WorkloadInvalid(problems)

    @property
    def stage(self) -> int:
        """Return the ZeRO stage that the strategy corresponds to: 0 to 3."""
        known = STRATEGIES[self.strategy].zero_stage
        return self.zero_stage if known is None else known

    @property
    def shard_degree(self) -> int:
        """Return the number of ranks that share the ZeRO stage's states."""
        return self.data_degree * self.context_degree // self.replicate_degree

    @property
    def expert_replicas(self) -> int:
        """Return the number of ranks that hold the same experts."""
        each = self.expert_degree * (self.expert_tensor_degree or self.tensor_degree)
        return max(1, self.data_degree * self.tensor_degree // each)

    @property
    def buffers_of(self) -> str:
        """Return torch, deepspeed or megatron: the library with communication
        buffers.
        """
        if self.engine != "auto":
            return self.engine
        return STRATEGIES[self.strategy].engine

    @property
    def is_staged(self) -> bool:
        """Return whether the rank has only a part of the layers."""
        staged = STRATEGIES[self.strategy].axis is Axis.STAGE
        return staged or self.pipeline_degree > 1

    @property
    def keeps_every_microbatch(self) -> bool:
        """Return whether backward begins after the last microbatch's forward
        (GPipe).
        """
        schedules = (STRATEGIES[self.strategy].schedule, self.pipeline_schedule)
        return "gpipe" in schedules


ENGINES = get_args(Engine)
SCHEDULES = get_args(Schedule)


def _check_words(one: Sharding, problems: dict[str, str]) -> None:
    for name, options in (
        ("strategy", RANK_STRATEGIES),
        ("engine", ENGINES),
        ("pipeline_schedule", SCHEDULES),
    ):
        if getattr(one, name) not in options:
            problems[name] = f"must be one of {', '.join(options)}"


def _check_numbers(one: Sharding, problems: dict[str, str]) -> None:
    for name in (
        "data_degree",
        "tensor_degree",
        "pipeline_degree",
        "expert_degree",
        "context_degree",
        "replicate_degree",
        "virtual_stages",
        "in_flight",
        "microbatches",
    ):
        value = getattr(one, name)
        if type(value) is not int or not 1 <= value <= MAX_DEGREE:
            problems[name] = f"must be a whole number from 1 to {MAX_DEGREE:,}"
    if one.zero_stage not in (0, 1, 2, 3):
        problems["zero_stage"] = "must be 0, 1, 2 or 3"
    if one.share_ratio is not None and not 0 <= one.share_ratio <= 1:
        problems["share_ratio"] = "must be between 0 and 1"
    if one.bucket_elements is not None and one.bucket_elements < 1:
        problems["bucket_elements"] = "must be at least 1"


def _check_together(one: Sharding, problems: dict[str, str]) -> None:
    """Note a problem for fields that exclude each other."""
    by_degrees = STRATEGIES[one.strategy].zero_stage is None
    if one.zero_stage and not by_degrees:
        problems["zero_stage"] = "belongs to the hybrid strategy"
    if one.sequence_parallel and one.tensor_degree == 1:
        problems["sequence_parallel"] = "needs a tensor degree above 1"
    if one.virtual_stages > 1 and one.pipeline_schedule != "interleaved":
        problems["virtual_stages"] = "more than 1 needs the interleaved schedule"
    if by_degrees and one.zero_stage >= 2 and one.is_staged:
        problems["zero_stage"] = (
            "2 and 3 do not go with a pipeline: each microbatch would reduce and "
            "gather again"
        )
    if one.data_degree * one.context_degree % one.replicate_degree:
        problems["replicate_degree"] = (
            f"{one.replicate_degree} groups do not divide {one.data_degree} replicas"
        )
    ranks = one.data_degree * one.tensor_degree
    each = one.expert_degree * (one.expert_tensor_degree or one.tensor_degree)
    if one.expert_degree > 1 and ranks % each:
        problems["expert_degree"] = f"{each} ranks of experts do not divide {ranks}"


def check_fit(spec: ModelSpec, workload: Workload, sharding: Sharding) -> None:
    """Raise WorkloadInvalid, by field, if a model cannot be cut this way."""
    problems = _length_problems(spec, workload)
    shape, degree = spec.shape, sharding.tensor_degree
    if degree > 1 and shape is not None:
        for name, count in (("heads", shape.heads), ("hidden size", shape.hidden)):
            if count % degree:
                problems["tensor_degree"] = f"{degree} does not divide {count} {name}"
        if shape.state_dim:
            problems["tensor_degree"] = "Mamba mixers are not cut over GPUs"
    if sharding.expert_degree > 1 and (
        shape is None or not shape.experts or shape.experts % sharding.expert_degree
    ):
        problems["expert_degree"] = (
            f"{sharding.expert_degree} does not divide the model's experts"
        )
    count = len(spec.layers)
    last = count if sharding.last_layer is None else sharding.last_layer
    if not 0 <= sharding.first_layer < last <= count:
        problems["last_layer"] = (
            f"layers {sharding.first_layer} to {last} of a model of {count}"
        )
    if any(not 0 <= first < end <= count for first, end in sharding.chunks):
        problems["chunks"] = f"a piece is empty or outside the model's {count} layers"
    if not workload.trains and STRATEGIES[sharding.strategy].zero_stage in (1, 2):
        problems["strategy"] = (
            f"{sharding.strategy} shares gradients and optimizer state; inference has "
            "none"
        )
    if problems:
        raise WorkloadInvalid(problems)


def _length_problems(spec: ModelSpec, workload: Workload) -> dict[str, str]:
    """Return the problems of a sequence that the model cannot read."""
    problems: dict[str, str] = {}
    most = learned_positions(spec)
    length = sequence_tokens(spec, workload)
    if most and length > most:
        field = "target_length" if workload.target_length else "sequence_length"
        problems[field] = sentence(
            "the model has learned positions for {most} tokens, not for {length}",
            most=f"{most:,}",
            length=f"{length:,}",
        )
    if workload.prefill_tokens and not spec.reads_in_chunks:
        problems["prefill_tokens"] = sentence(
            "this model does not read its input piece by piece"
        )
    return problems


def sequence_tokens(spec: ModelSpec, workload: Workload) -> int:
    """Return the tokens whose positions a model looks up; 0: a fixed number."""
    shape = spec.shape
    if shape is None or shape.image_tokens:
        return 0
    if shape.encoder_tokens:
        return workload.target_length
    return max(workload.sequence_length, workload.target_length)


def learned_positions(spec: ModelSpec) -> int:
    """Return how many positions the model has learned; 0: it has no such table.

    RoBERTa's table has two more rows, for the padding (modeling_roberta.py,
    padding_idx).
    """
    shape = spec.shape
    if shape is None or not shape.learns_positions:
        return 0
    padded = spec.family in ("roberta", "xlm-roberta")
    return max(1, shape.positions - 2) if padded else shape.positions


ONE_RANK = Sharding()

"""Runs of Megatron-LM read as ModelSpec, Workload and Sharding of their last rank.

Rows: megatron_gpu.json beside the reference data (golden values of NVIDIA/Megatron-LM's
functional tests: allocator bytes of the last rank). Argument names and defaults are
those of megatron/training/arguments.py; vocabularies are padded to a multiple of
128 x tensor degree. The formulas named THEIRS are Megatron's own, from
megatron/training/theoretical_memory_usage.py and arXiv:2205.05198.
"""

import math
import re
from dataclasses import dataclass
from typing import Any

from placement.planner.model.block_shape import TransformerShape
from placement.planner.model.sharding import Sharding
from placement.planner.model.spec import LayerSpec, ModelSpec, part
from placement.planner.values.workload import Workload

GPT2_VOCAB = 50257
BERT_CASED_VOCAB = 28996
BERT_UNCASED_VOCAB = 30522
DROPOUT = 0.1
"""Defaults of --hidden-dropout and --attention-dropout."""


@dataclass(frozen=True)
class Run:
    """One parsed row. `left_out`: the parts that are not modelled."""

    spec: ModelSpec
    workload: Workload
    sharding: Sharding
    left_out: tuple[str, ...]


class Args:
    """A row's arguments with Megatron's defaults."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row
        self.given = row["config"]
        self.hidden = self.given["hidden-size"]
        self.heads = self.given["num-attention-heads"]
        self.tensor = self.given["tensor-model-parallel-size"]
        self.pipeline = self.given.get("pipeline-model-parallel-size", 1)
        self.context = self.given.get("context-parallel-size", 1)
        self.experts = self.given.get("num-experts", 0)
        self.expert_degree = self.given.get("expert-model-parallel-size", 1)
        self.kind = row["model_family"]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument or its default."""
        return self.given.get(name, default)

    @property
    def layers(self) -> int:
        """Return the transformer layers, or those of the decoder."""
        return int(self.get("num-layers") or self.get("decoder-num-layers"))

    @property
    def inner(self) -> int:
        """Return --ffn-hidden-size; 4h, or 8/3 h in multiples of 64 with --swiglu."""
        given = self.get("ffn-hidden-size")
        if given:
            return int(given)
        if self.get("swiglu"):
            return int(4 * self.hidden * 2 / 3 / 64) * 64
        return 4 * int(self.hidden)

    @property
    def vocab(self) -> int:
        """Return the padded vocabulary."""
        vocab = self.get("vocab-size")
        if vocab is None:
            file = self.get("vocab-file", "")
            vocab = GPT2_VOCAB
            if "bert-large-cased" in file:
                vocab = BERT_CASED_VOCAB
            elif file.endswith("vocab.txt"):
                vocab = BERT_UNCASED_VOCAB
        vocab += self.get("vocab-extra-ids", 0)
        multiple = self.get("make-vocab-size-divisible-by", 128) * self.tensor
        return math.ceil(vocab / multiple) * multiple


def read_run(row: dict[str, Any]) -> Run:
    """Return the last rank of one row."""
    args = Args(row)
    spec = _spec(args)
    sharding = _sharding(args, spec)
    two = args.kind == "t5"
    length = args.get("encoder-seq-length") if two else args.get("seq-length")
    granularity = args.get("recompute-granularity")
    replicas = args.row["data_parallel"]
    micro = args.get("micro-batch-size")
    pieces = max(1, args.get("global-batch-size") // (micro * replicas))
    workload = Workload(
        batch=micro * replicas * pieces,
        sequence_length=length // args.context,
        target_length=args.get("decoder-seq-length", 0) if two else 0,
        precision="megatron_bf16",
        optimizer="adam",
        optimizer_loop="fused",
        checkpointing="full"
        if granularity == "full"
        else "selective"
        if granularity == "selective"
        else "none",
        attention=_attention(args),
        accumulation=1 if args.pipeline > 1 else pieces,
    )
    return Run(spec, workload, sharding, _left_out(args))


def _attention(args: Args) -> str:
    """Return the attention: unfused and local store the scores, and auto uses flash."""
    backend = args.get("attention-backend")
    local = args.get("transformer-impl") == "local" and backend is None
    return "eager" if backend in ("unfused", "local") or local else "flash"


def _left_out(args: Args) -> tuple[str, ...]:
    known = {
        "fp8-format": "fp8 activations",
        "mtp-num-layers": "multi-token prediction",
        "moe-layer-freq": "which layers route",
        "recompute-modules": "recomputed modules",
        "use-megatron-fsdp": "Megatron's FSDP",
    }
    return tuple(text for name, text in known.items() if args.get(name))


def _shape(args: Args) -> TransformerShape:
    groups = args.get("num-query-groups") if args.get("group-query-attention") else None
    head = args.get("kv-channels") or args.hidden // args.heads
    swiglu = bool(args.get("swiglu"))
    latent = bool(args.get("multi-latent-attention"))
    attention = "bidirectional" if args.kind == "bert" else "causal"
    rope = args.get("position-embedding-type") == "rope"
    return TransformerShape(
        hidden=args.hidden,
        heads=args.heads,
        kv_heads=groups or args.heads,
        head_dim=head,
        intermediate=args.inner,
        vocab=args.vocab,
        positions=args.get("max-position-embeddings"),
        norm="rmsnorm" if args.get("normalization") == "RMSNorm" else "layernorm",
        activation="silu" if swiglu else "gelu",
        gated=swiglu,
        fused_gate=swiglu,
        biases=not args.get("disable-bias-linear"),
        rotary="full" if rope and not latent else "none",
        fused_qkv=True,
        attention="encoder_decoder" if args.kind == "t5" else attention,  # type: ignore[arg-type]
        softmax_fp32=False,
        experts=args.experts,
        experts_per_token=args.get("moe-router-topk", 2) if args.experts else 0,
        expert_intermediate=args.get("moe-ffn-hidden-size", 0),
        shared_intermediate=args.get("moe-shared-expert-intermediate-size", 0),
        embedding_dropout_ratio=args.get("hidden-dropout", DROPOUT),
        attention_dropout_ratio=args.get("attention-dropout", DROPOUT),
        hidden_dropout_ratio=args.get("hidden-dropout", DROPOUT),
    )


def _spec(args: Args) -> ModelSpec:
    shape = _shape(args)
    hidden, bias = shape.hidden, shape.biases
    tables = [(shape.vocab, hidden)]
    if shape.rotary == "none" and args.get("position-embedding-type") != "rope":
        tables.append((shape.positions, hidden))
    if args.kind == "bert":
        tables.append((2, hidden))
    tied = not args.get("untie-embeddings-and-output-weights")
    layers = [LayerSpec("embedding", "embedding", (part("embedding", tables),))]
    routed = _routed(args)
    if args.kind == "t5":
        for index in range(args.get("encoder-num-layers")):
            parts = _block_parts(shape, bias, cross=False, routes=False)
            layers.append(LayerSpec(f"encoder {index}", "encoder", parts))
    kind = "decoder" if args.kind == "t5" else "block"
    for index in range(args.layers):
        parts = _block_parts(shape, bias, cross=args.kind == "t5", routes=routed[index])
        layers.append(LayerSpec(f"block {index}", kind, parts))  # type: ignore[arg-type]
    norm = [(hidden,)] * (1 if shape.norm == "rmsnorm" else 2)
    last = [part("norm", norm)]
    if not tied:
        last.append(part("head", [(shape.vocab, hidden)]))
    if args.kind == "bert":
        last.append(part("head", [(hidden, hidden), (hidden,), (hidden,), (hidden,)]))
    table = shape.vocab * hidden if tied else 0
    layers.append(LayerSpec("head", "head", tuple(last), tied_parameters=table))
    head = {"bert": "masked_lm", "t5": "seq2seq_lm"}.get(args.kind, "causal_lm")
    return ModelSpec(
        family=args.kind,
        name=args.row["id"],
        head=head,
        layers=tuple(layers),
        shape=shape,
        dtype="bf16",
        source="megatron",
    )


def _routed(args: Args) -> list[bool]:
    """Return the layers with experts: --moe-layer-freq is a Python list in a string."""
    pattern = args.get("moe-layer-freq")
    if isinstance(pattern, str):
        flags: list[bool] = []
        for value, times in re.findall(r"\[(\d)\]\*(\d+)", pattern):
            flags += [value == "1"] * int(times)
        return flags[: args.layers]
    return [bool(args.experts)] * args.layers


def _block_parts(
    shape: TransformerShape, bias: bool, *, cross: bool, routes: bool
) -> tuple[Any, ...]:
    hidden, inner = shape.hidden, shape.intermediate
    wide = shape.attention_width + 2 * shape.kv_width
    attention: list[tuple[int, ...]] = [
        (wide, hidden),
        (hidden, shape.attention_width),
    ]
    attention += [(wide,), (hidden,)] if bias else []
    parts = [part("attention", attention)] * (2 if cross else 1)
    ups = 2 if shape.gated else 1
    if routes:
        expert = shape.expert_intermediate or inner
        stacked: list[tuple[int, ...]] = [
            (shape.experts, ups * expert, hidden),
            (shape.experts, hidden, expert),
        ]
        parts.append(part("mlp", stacked))
        parts.append(part("router", [(shape.experts, hidden)]))
        if shape.shared_intermediate:
            shared = shape.shared_intermediate
            parts.append(part("head", [(ups * shared, hidden), (hidden, shared)]))
    else:
        dense: list[tuple[int, ...]] = [(ups * inner, hidden), (hidden, inner)]
        dense += [(ups * inner,), (hidden,)] if bias else []
        parts.append(part("mlp", dense))
    norms = (3 if cross else 2) * (1 if shape.norm == "rmsnorm" else 2)
    parts.append(part("norm", [(hidden,)] * norms))
    return tuple(parts)


def _sharding(args: Args, spec: ModelSpec) -> Sharding:
    count = len(spec.layers)
    pieces = args.get("global-batch-size") // (
        args.get("micro-batch-size") * args.row["data_parallel"]
    )
    common: dict[str, Any] = {
        "strategy": "hybrid",
        "engine": "megatron",
        "tensor_degree": args.tensor,
        "data_degree": args.row["data_parallel"],
        "sequence_parallel": bool(args.get("sequence-parallel")) and args.tensor > 1,
    }
    if args.experts:
        common["expert_degree"] = args.expert_degree
        common["expert_tensor_degree"] = args.get("expert-tensor-parallel-size")
    if args.get("use-megatron-fsdp"):
        common["zero_stage"] = 3
    elif args.get("use-distributed-optimizer"):
        common["zero_stage"] = 1
    if args.pipeline == 1:
        return Sharding(**common)
    common |= {
        "pipeline_degree": args.pipeline,
        "microbatches": max(1, pieces),
        "last_layer": count,
    }
    virtual = _virtual(args)
    if virtual > 1:
        spans = _interleaved(args, virtual)
        return Sharding(
            **common,
            pipeline_schedule="interleaved",
            virtual_stages=virtual,
            first_layer=spans[0][0],
            chunks=tuple(spans),
            in_flight=(virtual - 1) * args.pipeline + 1,
        )
    return Sharding(**common, first_layer=_first_of_last_stage(args))


def _virtual(args: Args) -> int:
    per = args.get("num-layers-per-virtual-pipeline-stage")
    if per:
        return int(len(_slots(args)) // args.pipeline // per)
    return int(args.get("num-virtual-stages-per-pipeline-rank") or 1)


def _slots(args: Args) -> list[int]:
    """Return layer indices in the order in which stages take them.

    The ends count as layers only if --account-for-* requests it. Otherwise they belong
    to their neighbour.
    """
    first = bool(args.get("account-for-embedding-in-pipeline-split"))
    last = bool(args.get("account-for-loss-in-pipeline-split"))
    return list(range(0 if first else 1, args.layers + (2 if last else 1)))


def _first_of_last_stage(args: Args) -> int:
    given = args.get("decoder-last-pipeline-num-layers")
    if given:
        return int(args.layers + 1 - given)
    slots = _slots(args)
    return slots[-(len(slots) // args.pipeline)]


def _interleaved(args: Args, virtual: int) -> list[tuple[int, int]]:
    """Return the last rank's pieces: every p-th of v x p, the head with the last of
    them.
    """
    slots = _slots(args)
    size = len(slots) // (virtual * args.pipeline)
    spans = []
    for turn in range(virtual):
        first = (turn * args.pipeline + args.pipeline - 1) * size
        spans.append((slots[first], slots[first + size - 1] + 1))
    spans[-1] = (spans[-1][0], args.layers + 2)
    return spans


def theirs_states(args: Args) -> float:
    """Return THEIRS: weights and optimizer of the most loaded rank, bytes."""
    swiglu = 3 / 2 if args.get("swiglu") else 1
    head = args.get("kv-channels") or args.hidden // args.heads
    ratio = head * args.heads / args.hidden
    groups = args.get("num-query-groups") if args.get("group-query-attention") else None
    groups = groups or args.heads
    experts = args.experts or 1
    layers = args.layers + (args.get("encoder-num-layers") or 0)
    hidden, inner = args.hidden, args.inner
    block = (
        2
        * layers
        * hidden**2
        * (
            (1 + groups / args.heads) * ratio
            + inner / hidden * experts * swiglu
            + 2 / hidden
            + 1 / (layers * hidden)
        )
    )
    tables = hidden * args.vocab
    untied = bool(args.get("untie-embeddings-and-output-weights"))
    first = block / args.pipeline + tables
    if untied and args.pipeline == 1:
        first += tables
    elements = first / args.tensor
    distributed = bool(args.get("use-distributed-optimizer"))
    each = 6 + 12 / args.row["data_parallel"] if distributed else 18
    return float(elements * each)


def theirs_activations(args: Args) -> float:
    """Return THEIRS: activations of the first stage, in bytes.

    Sequence parallelism and selective recomputation are assumed (arXiv:2205.05198,
    equation 6 and the ends).
    """
    length = args.get("seq-length") or args.get("encoder-seq-length")
    micro = args.get("micro-batch-size")
    rows = length * micro
    each = rows * args.hidden * (18 + 4 * args.inner / args.hidden)
    total = each * args.layers
    total += 8 * rows * args.pipeline
    total += rows * args.hidden * args.pipeline
    virtual = _virtual(args)
    pieces = args.get("global-batch-size") // (micro * args.row["data_parallel"])
    if virtual > 1:
        total *= 1 + (args.pipeline - 1) / (args.pipeline * virtual)
    elif args.pipeline > 1:
        total *= min(1.0, pieces / args.pipeline)
    if args.pipeline == 1:
        total += rows * args.hidden * 4 * (1 + args.vocab / args.hidden)
    return float(total / args.tensor)

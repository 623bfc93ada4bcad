"""What each layer of a model costs under a Workload: bytes kept, peaks, operations.

`layer_costs` replays each kind of layer once on a tape (placement.domain.tape) and
applies the checkpointing policy. Where the layers' arithmetic is unknown (a bare list
of tensors) the activations are a guess: every matrix keeps its input and its output
for each token. The estimate then says so.
"""

from dataclasses import dataclass

from placement.domain import heads
from placement.domain.blocks import BlockSetting, Tokens, block, layer_norm
from placement.domain.spec import LayerSpec, ModelSpec, TransformerShape
from placement.domain.states import layer_elements, optimizer_bytes, widths
from placement.domain.tape import LayerReplay, Tape, Value, replay
from placement.domain.workload import Workload


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer on one rank, for one microbatch. Bytes unless the name says else."""

    name: str
    kind: str
    elements: int
    """Parameters owned on this rank."""
    tied_elements: int
    largest: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    kept_bytes: int
    """Alive from this layer's forward to its backward, after checkpointing."""
    forward_peak_bytes: int
    """Most alive inside forward beyond what earlier layers keep."""
    backward_peak_bytes: int
    """Most alive inside backward beyond what earlier layers keep and later layers'
    gradients; this layer's kept bytes are in it."""
    weight_copy_bytes: int
    """Autocast's copies of a recomputed layer: alive till the whole forward ends."""
    output_bytes: int
    cache_bytes: int
    """Keys and values kept for generation (inference)."""
    gathered_bytes: int
    """This layer's whole weights in the compute precision (FSDP gathers them)."""
    forward_flops: float
    recompute_flops: float


def tokens_of(spec: ModelSpec, workload: Workload, microbatch: int) -> Tokens:
    """Tokens of one microbatch; a vision model has a fixed number per image."""
    length = workload.sequence_length
    if spec.shape is not None and spec.shape.image_tokens:
        length = spec.shape.image_tokens
    return Tokens(microbatch, length, length)


def layer_costs(
    spec: ModelSpec,
    workload: Workload,
    *,
    microbatch: int,
    tensor_degree: int = 1,
    gathered: bool = False,
) -> tuple[LayerCost, ...]:
    """The cost of every layer, in order. Identical layers are replayed once.

    `gathered`: FSDP gathers weights in the compute precision and computes in it
    throughout, so that autocast's copies do not exist.
    """
    tokens = tokens_of(spec, workload, microbatch)
    replays: dict[object, tuple[LayerReplay, float]] = {}
    costs: dict[object, LayerCost] = {}
    answer = []
    taped = workload
    if gathered and workload.precision == "autocast_bf16":
        taped = workload.but(precision="bf16")
    for index, layer in enumerate(spec.layers):
        ends = layer.kind == "encoder" and spec.layers[index + 1].kind == "decoder"
        key = (layer.kind, ends, layer.parts, layer.tied_parameters)
        if key not in costs:
            if spec.shape is None:
                made = (_guess(layer, workload, tokens), 0.0)
            else:
                made = replays.get((layer.kind, ends)) or _replay_layer(
                    spec, spec.shape, layer, taped, tokens, tensor_degree, ends
                )
                replays[(layer.kind, ends)] = made
            costs[key] = _cost(spec, layer, workload, tokens, made, tensor_degree)
        answer.append(_named(costs[key], layer.name))
    return tuple(answer)


def _named(cost: LayerCost, name: str) -> LayerCost:
    if cost.name == name:
        return cost
    values = [getattr(cost, field) for field in LayerCost.__slots__]
    return LayerCost(name, *values[1:])


def new_tape(workload: Workload) -> Tape:
    width = widths(workload)
    return Tape(
        compute_width=width.compute,
        residual_width=width.residual,
        autocast=width.autocast,
        grad_width=width.gradient,
        mask_width=0.0 if workload.accelerator == "cpu" else 1.0,
        saves=workload.trains,
        reorders=workload.accelerator == "cpu",
    )


def _replay_layer(
    spec: ModelSpec,
    shape: TransformerShape,
    layer: LayerSpec,
    workload: Workload,
    tokens: Tokens,
    degree: int,
    ends_encoder: bool,
) -> tuple[LayerReplay, float]:
    """Answers the replay and the weight copies that autocast made in it."""
    tape = new_tape(workload)
    accumulates = workload.accumulation > 1
    if layer.kind == "embedding":
        table = layer_elements(layer, degree)
        out = heads.embedding(tape, shape, tokens, table_elements=table)
        source = tape.ops[0].inputs[0] if tape.ops[0].inputs else Value(0, 8)
        return replay(tape.ops, source, out, accumulates=accumulates), 0.0
    source = Value(tokens.count * shape.hidden, tape.residual_width)
    if layer.kind == "head":
        if not workload.trains and spec.head == "causal_lm":
            source = Value(tokens.batch * shape.hidden, tape.residual_width)
        out = heads.head(
            tape,
            shape,
            source,
            tokens,
            spec.head,
            tensor_degree=degree,
            fused_loss=workload.loss == "fused",
        )
        return replay(tape.ops, source, out, accumulates=accumulates), 0.0
    setting = BlockSetting(
        workload.attention,
        degree,
        cpu=workload.accelerator == "cpu",
        recompute_scores=workload.trains and workload.checkpointing == "selective",
    )
    memory = None
    if layer.kind == "decoder":
        memory = Value(source.elements, source.width, foreign=True)
    out = block(
        tape,
        shape,
        source,
        tokens,
        setting,
        memory=memory,
        memory_tokens=tokens if memory else None,
    )
    if ends_encoder:
        out = layer_norm(tape, shape, out)
        out = tape.dropout(out, shape.hidden_dropout_ratio)
    made = replay(tape.ops, source, out, accumulates=accumulates)
    return made, tape.copied_bytes


def _guess(layer: LayerSpec, workload: Workload, tokens: Tokens) -> LayerReplay:
    """Unknown arithmetic: each matrix keeps input and output for each token."""
    width = widths(workload).compute
    edges = sum(part.edges for part in layer.parts if part.component != "embedding")
    kept = float(edges * tokens.count * width)
    if not workload.trains:
        return LayerReplay(0.0, kept / 4, kept / 4, kept / 2, 0.0, 0.0)
    grads = layer.parameters * widths(workload).gradient
    return LayerReplay(
        kept_bytes=kept,
        output_bytes=kept / 4,
        input_bytes=kept / 4,
        forward_peak_bytes=kept * 1.25,
        backward_peak_bytes=kept * 1.5 + grads,
        backward_end_bytes=grads,
    )


def _cost(
    spec: ModelSpec,
    layer: LayerSpec,
    workload: Workload,
    tokens: Tokens,
    replayed: tuple[LayerReplay, float],
    degree: int,
) -> LayerCost:
    made, copied = replayed
    width = widths(workload)
    elements = layer_elements(layer, degree)
    tied = -(-layer.tied_parameters // degree)
    flops = _forward_flops(spec, layer, tokens, degree)
    kept, forward, backward = _checkpointed(made, layer, workload)
    parameter_bytes = width.parameter * elements
    if width.autocast and not workload.trains:
        matrices = sum(part.matrix_parameters for part in layer.parts) // degree
        is_table = layer.kind == "embedding"
        parameter_bytes += 0 if is_table else width.compute * matrices
    return LayerCost(
        name=layer.name,
        kind=layer.kind,
        elements=elements,
        tied_elements=tied,
        largest=-(-layer.largest // degree),
        parameter_bytes=int(parameter_bytes),
        gradient_bytes=int(width.gradient * elements) if workload.trains else 0,
        optimizer_bytes=optimizer_bytes(layer, workload, degree),
        kept_bytes=int(kept),
        forward_peak_bytes=int(forward),
        backward_peak_bytes=int(backward),
        weight_copy_bytes=int(copied) if _is_checkpointed(layer, workload) else 0,
        output_bytes=int(made.output_bytes),
        cache_bytes=_cache_bytes(spec, layer, workload, tokens, degree),
        gathered_bytes=int(width.compute * elements),
        forward_flops=flops,
        recompute_flops=flops if _is_checkpointed(layer, workload) else 0.0,
    )


def _is_checkpointed(layer: LayerSpec, workload: Workload) -> bool:
    blocks = ("block", "encoder", "decoder", "other")
    return workload.trains and workload.checkpointing == "full" and layer.kind in blocks


def _checkpointed(
    made: LayerReplay, layer: LayerSpec, workload: Workload
) -> tuple[float, float, float]:
    """(kept, forward peak, backward peak) under the checkpointing policy.

    full: a block keeps its input only; its backward runs its forward once more, so
    the peak inside it holds the input, the whole block and the incoming gradient.
    selective: the block's own replay keeps no attention scores (BlockSetting).
    """
    if _is_checkpointed(layer, workload):
        forward = made.forward_peak_bytes
        return made.input_bytes, forward, made.backward_peak_bytes
    return made.kept_bytes, made.forward_peak_bytes, made.backward_peak_bytes


def _cache_bytes(
    spec: ModelSpec, layer: LayerSpec, workload: Workload, tokens: Tokens, degree: int
) -> int:
    """2 x kv_heads x head_dim per token and block (PLACEMENT.md 1.5)."""
    shape = spec.shape
    if workload.trains or shape is None or layer.kind not in ("block", "decoder"):
        return 0
    if shape.attention == "bidirectional":
        return 0
    per_token = 2 * -(-shape.kv_width // degree) * widths(workload).compute
    return int(per_token * tokens.count)


def _forward_flops(
    spec: ModelSpec, layer: LayerSpec, tokens: Tokens, degree: int
) -> float:
    """2 operations per matrix element and token, and 4 s^2 per attention width."""
    shape = spec.shape
    count = tokens.count
    if layer.kind == "embedding" and not (shape and shape.image_tokens):
        return 0.0
    matrices = 0
    for part in layer.parts:
        used = part.matrix_parameters
        if part.component == "mlp" and shape is not None and shape.experts:
            used = used * shape.experts_per_token // shape.experts
        matrices += used
    matrices += layer.tied_parameters
    if shape is not None and shape.image_tokens and layer.kind == "head":
        return 2.0 * matrices * tokens.batch / degree
    flops = 2.0 * matrices * count
    if shape is not None and layer.kind in ("block", "encoder", "decoder"):
        flops += 4.0 * tokens.batch * tokens.length**2 * shape.attention_width
    return flops / degree

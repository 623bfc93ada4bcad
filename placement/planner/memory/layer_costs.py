"""The cost of each layer of a model under a Workload: bytes kept, peaks, operations.

`layer_costs` replays each kind of layer once on a tape (placement.planner.memory.tape)
and applies the checkpointing policy. If the layers' arithmetic is unknown (a bare list
of tensors), the activations are a guess: every matrix keeps its input and its output
for each token. The estimate has a note then.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from placement.planner.memory.autograd_replay import LayerReplay
from placement.planner.memory.layer_tapes import (
    Replaying,
    is_recurrent,
    new_tape,
    replay_layer,
)
from placement.planner.memory.parameter_states import (
    ADAPTER_WIDTH,
    Cut,
    expert_elements,
    gradient_bytes,
    layer_elements,
    muon_part_elements,
    optimizer_bytes,
    parameter_bytes,
    part_elements,
    trained_elements,
    widths,
)
from placement.planner.memory.trainable_weights import all_frozen
from placement.planner.model.spec import LayerPart, LayerSpec, ModelSpec
from placement.planner.values.workload import Workload

__all__ = ["LayerCost", "layer_costs", "new_tape"]

Replays = dict[object, tuple[LayerReplay, float]]
"""Replays and autocast's weight copies, by kind of layer."""
SCAN_FLOPS = 6
"""Operations of one number of a Mamba state for one token, besides the two that its row
of A counts as a matrix: exponent, two products for the input, a sum, and its product
with the output's weights.
"""
BLOCK_KINDS = ("block", "encoder", "decoder")


@dataclass(frozen=True, slots=True)
class LayerCost:
    """The cost of one layer on one rank, for one microbatch. In bytes unless the name
    has another unit.
    """

    kind: str
    elements: int
    """Parameters owned by this rank."""
    tied_elements: int
    largest: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    kept_bytes: int
    """Alive from this layer's forward to its backward, after checkpointing."""
    forward_peak_bytes: int
    """Largest number of bytes alive inside forward, without those that earlier layers
    keep.
    """
    backward_peak_bytes: int
    """Largest number of bytes alive inside backward, without those that earlier layers
    keep and later layers' gradients. It includes this layer's kept bytes.
    """
    weight_copy_bytes: int
    """Autocast's copies of a recomputed layer, alive until the whole forward ends."""
    output_bytes: int
    """Of all tokens of the microbatch."""
    cache_bytes: int
    """Keys and values kept for generation (inference)."""
    gathered_bytes: int
    """This layer's whole weights in the compute precision, which FSDP gathers."""
    forward_flops: float
    recompute_flops: float
    trained_elements: int = 0
    """Those of `elements` that have a gradient."""
    moment_width: float = 4.0
    """Bytes per element of the optimizer's temporaries, the same as of a moment."""
    expert_elements: int = 0
    """Those of `elements` that belong to experts, which fewer replicas share."""
    first_backward_bytes: int = 0
    """`backward_peak_bytes` of the first microbatch, without earlier gradients; 0: the
    same.
    """
    logits_bytes: int = 0
    """The head's result, which lives as long as the caller refers to it."""
    backward_flops: float = 0.0
    """Operations for the gradients of its input and of the trained weights."""
    muon_elements: int = 0
    """Those of `trained_elements` that Muon steps. AdamW steps the others."""
    muon_largest: int = 0
    """Elements of the largest matrix that Muon steps."""
    run_output_bytes: int = 0
    """Output of the tokens that pass through the layer together."""


def layer_costs(
    spec: ModelSpec,
    workload: Workload,
    *,
    microbatch: int,
    tensor_degree: int = 1,
    gathered: bool = False,
    expert_degree: int = 1,
    expert_tensor_degree: int | None = None,
    sequence_parallel: bool = False,
    regathers: bool = True,
    replays: Replays | None = None,
) -> tuple[LayerCost, ...]:
    """Return the cost of every layer, in order. Identical layers are replayed once, and
    have the same object.

    `gathered`: FSDP gathers weights in the compute precision and computes in it
    throughout, so that autocast's copies do not exist. `regathers`: with
    `sequence_parallel`, gathered tokens are gathered again in backward (Megatron).
    `replays`: known replays of the same question, perhaps with another optimizer, which
    no replay depends on; new ones are added.
    """
    taped = workload
    if gathered and widths(workload).autocast:
        taped = workload.replace(precision="bf16")
    cut = Cut(tensor_degree, expert_degree, expert_tensor_degree or tensor_degree)
    setting = Replaying(spec, taped, microbatch, cut, sequence_parallel, regathers)
    windowed = spec.shape.sliding_blocks if spec.shape else 0
    constant = workload.checkpointing != "full"
    known: dict[object, LayerCost] = {}
    answer = []
    for index, layer in enumerate(spec.layers):
        ends = layer.kind == "encoder" and spec.layers[index + 1].kind == "decoder"
        window = 0 < index <= windowed
        key = (layer.kind, ends, constant, window, layer.parts, layer.tied_parameters)
        if key not in known:
            made = None if replays is None else replays.get(key)
            if made is None:
                made = replay_layer(setting, layer, ends=ends, constant=constant)
                if replays is not None:
                    replays[key] = made
            reached = not (constant and all_frozen(layer))
            known[key] = _cost(setting, layer, workload, made, window, reached)
        answer.append(known[key])
        constant = constant and all_frozen(layer)
    return tuple(answer)


def _cost(
    setting: Replaying,
    layer: LayerSpec,
    workload: Workload,
    replayed: tuple[LayerReplay, float],
    windowed: bool,
    reached: bool,
) -> LayerCost:
    made, copied = replayed
    cut = setting.cut
    degree = cut.tensor_degree
    elements = layer_elements(layer, cut=cut)
    flops = _forward_flops(setting, layer)
    again = _is_checkpointed(layer, workload)
    weights = parameter_bytes(layer, workload, cut)
    if not workload.trains:
        weights += _cached_copies(setting, layer)
    learns = [one for one in layer.parts if not one.frozen]
    return LayerCost(
        kind=layer.kind,
        elements=elements,
        tied_elements=-(-layer.tied_parameters // degree),
        largest=-(-max((one.largest for one in learns), default=0) // degree),
        parameter_bytes=weights,
        gradient_bytes=gradient_bytes(layer, workload, cut),
        optimizer_bytes=optimizer_bytes(layer, workload, cut=cut),
        # A checkpointed block keeps only its input. Its backward runs it once more, so
        # the peak inside is the whole block with its input and gradients.
        kept_bytes=int(made.input_bytes if again else made.kept_bytes),
        forward_peak_bytes=int(made.forward_peak_bytes),
        backward_peak_bytes=int(made.backward_peak_bytes),
        weight_copy_bytes=int(copied) if again else 0,
        output_bytes=int(made.output_bytes * _runs(setting, layer)),
        cache_bytes=_cache_bytes(setting, layer, windowed),
        gathered_bytes=_gathered_bytes(layer, workload, cut),
        forward_flops=flops,
        recompute_flops=flops if again else _scores_flops(setting, layer),
        trained_elements=trained_elements(layer, cut),
        moment_width=_moment_width(layer, workload),
        expert_elements=expert_elements(layer, cut),
        first_backward_bytes=int(made.first_backward_bytes),
        logits_bytes=_logits_bytes(setting, layer),
        backward_flops=_backward_flops(setting, layer, flops) if reached else 0.0,
        muon_elements=_muon_elements(learns, layer, workload, cut),
        muon_largest=-(-_largest_matrix(learns, workload) // degree),
        run_output_bytes=int(made.output_bytes),
    )


def _cached_copies(setting: Replaying, layer: LayerSpec) -> int:
    """Return the bytes of a layer's weight copies that autocast keeps in inference.

    Its cache takes only fp32 leaves that require a gradient (aten/src/ATen/
    autocast_mode.cpp, cached_cast). A frozen weight is cast again in each call, and a
    quantized one is dequantized: the tape counts both as temporaries.
    """
    width = widths(setting.workload)
    if not width.autocast or layer.kind == "embedding":
        return 0
    matrices = sum(
        one.matrix_parameters
        for one in layer.parts
        if not one.frozen and one.weight_bits is None
    )
    if layer.tied_parameters and not all_frozen(setting.spec.layers[0]):
        matrices += layer.tied_parameters
    return int(width.compute * matrices / setting.cut.tensor_degree)


def _runs(setting: Replaying, layer: LayerSpec) -> float:
    """Return how many times as many tokens a microbatch has as one run of the layer."""
    every, run = setting.tokens(layer.kind), setting.run_tokens(layer.kind)
    if layer.kind == "head":
        return every.batch / run.batch
    return every.count / run.count


def _muon_elements(
    learns: Sequence[LayerPart], layer: LayerSpec, workload: Workload, cut: Cut
) -> int:
    """Return the elements that Muon steps.

    torch.optim.Muon takes matrices of hidden layers only: no tables, head, norms,
    biases, and no experts stacked in three dimensions.
    """
    if workload.optimizer != "muon":
        return 0
    return sum(
        muon_part_elements(one, part_elements(one, layer, cut)) for one in learns
    )


def _largest_matrix(learns: Sequence[LayerPart], workload: Workload) -> int:
    if workload.optimizer != "muon":
        return 0
    hidden = [one for one in learns if muon_part_elements(one, one.parameters)]
    sizes = [x.outputs * x.inputs for one in hidden for x in one.linears]
    return max(sizes, default=0)


def _logits_bytes(setting: Replaying, layer: LayerSpec) -> int:
    """Return the bytes of a score for each token and word. With a fused loss none
    stays. Tensor ranks gather the scores for the loss, except those of Megatron
    (`model_ends.head`).
    """
    shape, workload = setting.spec.shape, setting.workload
    words = ("causal_lm", "masked_lm", "seq2seq_lm")
    if layer.kind != "head" or shape is None or setting.spec.head not in words:
        return 0
    if workload.loss == "fused":
        return 0
    parts = setting.cut.tensor_degree
    if workload.trains and workload.precision != "megatron_bf16":
        parts = 1
    vocab = max(1, shape.vocab // parts)
    return int(setting.tokens("head").count * vocab * widths(workload).compute)


def _moment_width(layer: LayerSpec, workload: Workload) -> float:
    adapters = any(one.component == "adapter" for one in layer.parts)
    return float(ADAPTER_WIDTH) if adapters else widths(workload).moment


def _gathered_bytes(layer: LayerSpec, workload: Workload, cut: Cut) -> int:
    """Return whole weights in the compute precision. Quantized ones keep their form."""
    width = widths(workload).compute
    total = 0.0
    for one in layer.parts:
        if one.weight_bits is not None:
            total += one.stored_bytes / cut.tensor_degree
        else:
            total += width * part_elements(one, layer, cut)
    return int(total)


def _is_checkpointed(layer: LayerSpec, workload: Workload) -> bool:
    blocks = ("block", "encoder", "decoder", "other")
    return workload.trains and workload.checkpointing == "full" and layer.kind in blocks


def _cache_bytes(setting: Replaying, layer: LayerSpec, windowed: bool) -> int:
    """Return 2 x kv_heads x head_dim per token and block
    (docs/design/placement.md#inference).

    A windowed block keeps only its window. A paged cache has whole blocks of tokens. A
    decoder also keeps keys and values of the encoder's output. Latent attention keeps
    one latent and its rotated key for all heads, on every tensor rank (DeepSeek-V2,
    arXiv:2405.04434, table 1); transformers' own cache keeps their expansions.
    """
    shape, workload = setting.spec.shape, setting.workload
    if workload.trains or shape is None or layer.kind not in ("block", "decoder"):
        return 0
    if shape.attention == "bidirectional":
        return 0
    if is_recurrent(shape, layer):
        # One state for each sequence, in fp32, and the inputs of the convolution.
        of_state = 4 * shape.state_dim
        of_inputs = shape.state_kernel * widths(workload).compute
        each = shape.state_inner * (of_state + of_inputs)
        return int(setting.tokens(layer.kind).batch * each)
    degree = setting.cut.tensor_degree
    keys = 2 * shape.kv_width
    if shape.latent_kv:
        keys = degree * (shape.latent_kv + shape.rope_dim)
    tokens = setting.tokens(layer.kind)
    length = tokens.length
    if windowed and shape.sliding_window:
        length = min(length, shape.sliding_window)
    block = workload.kv_block_tokens
    length = -(-length // block) * block
    if layer.kind == "decoder":
        length += setting.tokens("encoder").length
    per_token = -(-keys // degree) * widths(workload).compute
    return int(per_token * tokens.batch * length)


def _backward_flops(setting: Replaying, layer: LayerSpec, forward: float) -> float:
    """Return the operations of one backward.

    They are as many as forward for the gradients of the inputs, attention's scores once
    more, and as many as forward for each trained weight. A frozen weight has no
    gradient (derivatives.yaml: mm makes the gradient only of the side that requires
    it), so LoRA's backward takes about half (arXiv:2106.09685).
    """
    if not setting.workload.trains:
        return 0.0
    if not any(one.frozen for one in layer.parts):
        return 2 * forward
    matrices = _forward_flops(setting, layer, attention=False)
    learned = _forward_flops(setting, layer, attention=False, learns=True)
    return forward + (forward - matrices) + learned


def _scores_flops(setting: Replaying, layer: LayerSpec) -> float:
    """Return the operations of attention's scores that selective recomputation repeats
    (arXiv:2205.05198, section 5).
    """
    workload = setting.workload
    if not workload.trains or workload.checkpointing != "selective":
        return 0.0
    whole = _forward_flops(setting, layer)
    return whole - _forward_flops(setting, layer, attention=False)


def _forward_flops(
    setting: Replaying,
    layer: LayerSpec,
    *,
    attention: bool = True,
    learns: bool = False,
) -> float:
    """Return 2 operations per matrix element and token, and 4 s^2 per attention width.

    Args:
        attention: count the scores and their product with the values.
        learns: count only matrices that have a gradient.
    """
    spec, degree = setting.spec, setting.cut.tensor_degree
    shape = spec.shape
    tokens = setting.tokens(layer.kind)
    if layer.kind == "embedding" and not (shape and shape.image_tokens):
        return 0.0
    matrices = layer.tied_parameters
    if learns and all_frozen(spec.layers[0]):
        matrices = 0
    routed = any(one.component == "router" for one in layer.parts)
    for one in layer.parts:
        if learns and one.frozen:
            continue
        used = one.matrix_parameters
        if one.component == "mlp" and shape is not None and shape.experts and routed:
            shared = sum(x.outputs * x.inputs * x.copies for x in one.linears)
            stacked = max(0, used - shared)
            used = shared + stacked * shape.experts_run // shape.experts
        elif shape is None:
            used -= int(one.routed_parameters * (1 - spec.routed_ratio))
        matrices += used
    if shape is not None and shape.image_tokens and layer.kind == "head":
        return 2.0 * matrices * tokens.batch / degree
    flops = 2.0 * matrices * tokens.count * spec.flops_ratio
    if attention and shape is not None and layer.kind in BLOCK_KINDS:
        if is_recurrent(shape, layer):
            states = shape.state_inner * shape.state_dim
            flops += SCAN_FLOPS * tokens.count * states
        else:
            flops += 4.0 * tokens.batch * tokens.length**2 * shape.attention_width
    return flops / degree

"""The tape of each kind of layer under a Workload: embedding, block, head, a guess.

An encoder-decoder has two sequences. Vision and audio models have a fixed length.
Layers before the first trained parameter keep nothing for backward.
"""

from dataclasses import dataclass

from placement.planner.memory import model_ends
from placement.planner.memory.attention import BlockSetting, Tokens
from placement.planner.memory.autograd_replay import LayerReplay, replay
from placement.planner.memory.norm_operators import norm
from placement.planner.memory.parameter_states import (
    WHOLE,
    Cut,
    trained_elements,
    widths,
)
from placement.planner.memory.tape import Tape, Value
from placement.planner.memory.trainable_weights import weights_of
from placement.planner.memory.transformer_block import block
from placement.planner.model.block_shape import TransformerShape
from placement.planner.model.spec import LayerPart, LayerSpec, ModelSpec
from placement.planner.values.workload import Workload

BROADCAST_KEYS = ("falcon", "gpt_bigcode")
"""Families that pass one key head to SDPA for all query heads."""


@dataclass(frozen=True, slots=True)
class Replaying:
    """The common settings of the tapes of one rank's layers."""

    spec: ModelSpec
    workload: Workload
    microbatch: int
    cut: Cut = WHOLE
    sequence_parallel: bool = False
    regathers: bool = True
    """See attention.BlockSetting."""

    @property
    def divide(self) -> int:
        """Return the number of ranks that share the tokens between tensor-parallel
        regions.
        """
        return self.cut.tensor_degree if self.sequence_parallel else 1

    def tokens(self, kind: str) -> Tokens:
        """Return one microbatch as a layer of this kind sees it."""
        shape, workload = self.spec.shape, self.workload
        length = workload.sequence_length
        if shape is None:
            length = self.spec.sample_tokens or length
            return Tokens(self.microbatch, length, length)
        source = shape.image_tokens or shape.encoder_tokens or length
        target = workload.target_length or length
        two = shape.attention == "encoder_decoder"
        if two and kind not in ("encoder", "embedding"):
            return Tokens(self.microbatch, target, target)
        return Tokens(self.microbatch, source, source)

    def run_tokens(self, kind: str) -> Tokens:
        """Return the tokens that pass through a layer together.

        They are those of the microbatch, or a chunk of its prompts. Each query of a
        chunk sees the keys of its whole prompt, as the last chunk does.
        """
        every = self.tokens(kind)
        if not self.spec.reads_in_chunks:
            return every
        piece = self.workload.prompt_piece(every.batch, every.length)
        return Tokens(*piece, every.keys)


def new_tape(workload: Workload) -> Tape:
    """Return an empty tape in the Workload's precision.

    Megatron's autograd makes 16-bit gradients and adds them to the fp32 buffer.
    """
    width = widths(workload)
    megatron = workload.precision == "megatron_bf16"
    return Tape(
        compute_width=width.compute,
        residual_width=width.residual,
        autocast=width.autocast,
        grad_width=width.compute if megatron else width.gradient,
        mask_width=0.0 if workload.accelerator == "cpu" else 1.0,
        saves=workload.trains,
        reorders=workload.accelerator == "cpu",
    )


def replay_layer(
    setting: Replaying, layer: LayerSpec, *, ends: bool, constant: bool
) -> tuple[LayerReplay, float]:
    """Return the replay of one layer, and the weight copies that autocast made in it.

    `ends`: the last encoder, which the encoder's own norm follows. `constant`: nothing
    before this layer is trained, so no gradient flows out of it.
    """
    shape = setting.spec.shape
    if shape is None:
        return guess(setting, layer), 0.0
    tape = new_tape(setting.workload)
    owner = setting.spec.layers[0]
    tape.weights = weights_of(layer, shape, owner=owner)
    if layer.kind == "embedding":
        return _embedding(setting, shape, layer, tape), 0.0
    if layer.kind == "head":
        return _head(setting, shape, layer, tape, constant), 0.0
    return _block(setting, shape, layer, tape, ends, constant)


def _embedding(
    setting: Replaying, shape: TransformerShape, layer: LayerSpec, tape: Tape
) -> LayerReplay:
    two = shape.attention == "encoder_decoder"
    out = model_ends.embedding(
        tape,
        shape,
        setting.run_tokens("embedding"),
        table_elements=trained_elements(layer, setting.cut),
        target=setting.tokens("decoder") if two else None,
    )
    source = tape.ops[0].inputs[0] if tape.ops[0].inputs else Value(0, 8)
    if setting.divide > 1:
        out = tape.simple([out], out.elements // setting.divide, out.width)
    return _walk(setting, tape, source, out)


def _head(
    setting: Replaying,
    shape: TransformerShape,
    layer: LayerSpec,
    tape: Tape,
    constant: bool,
) -> LayerReplay:
    spec, workload = setting.spec, setting.workload
    tokens = setting.run_tokens("head")
    rows = tokens.count
    if not workload.trains and spec.head == "causal_lm":
        rows = tokens.batch
    elements = rows * shape.hidden
    source = Value(elements // setting.divide, tape.residual_width, constant=constant)
    given = source
    if setting.divide > 1:
        given = tape.simple([source], elements, source.width)
    out = model_ends.head(
        tape,
        shape,
        given,
        tokens,
        spec.head,
        tensor_degree=setting.cut.tensor_degree,
        fused_loss=workload.loss == "fused",
        in_place_loss=workload.precision == "megatron_bf16",
        tied=layer.tied_parameters > 0,
    )
    return _walk(setting, tape, source, out)


def _block(
    setting: Replaying,
    shape: TransformerShape,
    layer: LayerSpec,
    tape: Tape,
    ends: bool,
    constant: bool,
) -> tuple[LayerReplay, float]:
    workload = setting.workload
    tokens = setting.run_tokens(layer.kind)
    elements = tokens.count * shape.hidden // setting.divide
    source = Value(elements, tape.residual_width, constant=constant)
    chosen = BlockSetting(
        workload.attention,
        setting.cut.tensor_degree,
        cpu=workload.accelerator == "cpu",
        recompute_scores=workload.trains and workload.checkpointing == "selective",
        sequence_parallel=setting.sequence_parallel,
        regathers=setting.regathers,
        broadcast_keys=shape.kv_heads == 1 < shape.heads
        and setting.spec.family in BROADCAST_KEYS,
    )
    memory = heard = None
    if layer.kind == "decoder":
        heard = setting.tokens("encoder")
        memory = Value(heard.count * shape.hidden, source.width, foreign=True)
    out = block(
        tape,
        shape,
        source,
        tokens,
        chosen,
        memory=memory,
        memory_tokens=heard,
        routed=any(one.component == "router" for one in layer.parts)
        if shape.experts
        else False,
        recurrent=is_recurrent(shape, layer),
        spread=setting.cut.expert_degree,
        expert_degree=setting.cut.expert_tensor_degree,
    )
    if ends:
        out = norm(tape, shape, out)
        out = tape.dropout(out, shape.hidden_dropout_ratio)
    return _walk(setting, tape, source, out), tape.copied_bytes


def is_recurrent(shape: TransformerShape, layer: LayerSpec) -> bool:
    """Return whether a block has a Mamba mixer instead of attention."""
    attends = any(one.component == "attention" for one in layer.parts)
    return shape.state_dim > 0 and not attends


def _walk(setting: Replaying, tape: Tape, source: Value, out: Value) -> LayerReplay:
    workload = setting.workload
    megatron = workload.precision == "megatron_bf16"
    accumulates = workload.accumulation > 1 or workload.keeps_gradients or megatron
    return replay(tape.ops, source, out, accumulates=accumulates)


def _edges(part: LayerPart, routed_ratio: float) -> float:
    """Return inputs and outputs of a part's matrices for one token.

    Of stacked experts only those count that the router selects.
    """
    if part.component == "embedding":
        return 0.0
    return part.edges - part.routed_edges * (1 - routed_ratio)


def guess(setting: Replaying, layer: LayerSpec) -> LayerReplay:
    """Replay a layer of unknown arithmetic: each matrix keeps input and output for each
    token.
    """
    workload = setting.workload
    width = widths(workload).compute
    ratio = setting.spec.routed_ratio
    edges = sum(_edges(part, ratio) for part in layer.parts)
    kept = float(edges * setting.tokens("block").count * width)
    kept *= setting.spec.activation_ratio
    if not workload.trains:
        return LayerReplay(0.0, kept / 4, kept / 4, kept / 2, 0.0)
    grads = trained_elements(layer) * widths(workload).gradient
    return LayerReplay(
        kept_bytes=kept,
        output_bytes=kept / 4,
        input_bytes=kept / 4,
        forward_peak_bytes=kept * 1.25,
        backward_peak_bytes=kept * 1.5 + grads,
    )

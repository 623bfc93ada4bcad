"""The two ends of a model as tapes: tables at the start, logits and loss at the end."""

from placement.planner.memory.attention import Tokens
from placement.planner.memory.matrix_products import linear
from placement.planner.memory.norm_operators import activation, norm
from placement.planner.memory.tape import Op, Tape, Value
from placement.planner.memory.transformer_block import image_input
from placement.planner.model.block_shape import TransformerShape


def embedding(
    tape: Tape,
    shape: TransformerShape,
    tokens: Tokens,
    *,
    table_elements: int,
    target: Tokens | None = None,
) -> Value:
    """Record the look-up of tokens (or the cutting of an image into patches), norm,
    dropout.

    The table's gradient is dense: as large as the table, however few rows were read.
    `target`: an encoder-decoder's second sequence. `table_elements`: the trained ones.
    """
    grad_bytes = table_elements * tape.grad_width
    if shape.image_tokens:
        x = _patches(tape, shape, tokens, grad_bytes)
    elif shape.audio_channels:
        x = _spectrogram(tape, shape, tokens, target or tokens, grad_bytes)
    else:
        x = _looked_up(tape, shape, tokens, target, grad_bytes)
    if shape.scaled_embedding:
        x = tape.simple([x], x.elements, x.width)
    if shape.embedding_norm:
        x = norm(tape, shape, x)
    return tape.dropout(x, shape.embedding_dropout_ratio)


def _looked_up(
    tape: Tape,
    shape: TransformerShape,
    tokens: Tokens,
    target: Tokens | None,
    grad_bytes: float,
) -> Value:
    count = tokens.count + (target.count if target else 0)
    width = shape.embedding_width or shape.hidden
    ids = Value(count, 8, constant=True)
    x = tape.simple(
        [ids],
        count * width,
        tape.residual_width,
        kept=[ids],
        weight_grad_bytes=grad_bytes,
    )
    if width != shape.hidden:
        x = linear(
            tape, x, width, shape.hidden, bias=shape.biases, component="embedding"
        )
    if shape.learns_positions:
        x = tape.add(x, Value(x.elements, tape.residual_width, constant=True))
    return x


def _patches(
    tape: Tape, shape: TransformerShape, tokens: Tokens, grad_bytes: float
) -> Value:
    size = tokens.batch * shape.channels * shape.image_size**2
    pixels = image_input(tape, size)
    elements = tokens.count * shape.hidden
    x = tape.simple(
        [pixels],
        elements,
        tape.compute_width,
        kept=[pixels],
        weight_grad_bytes=grad_bytes,
    )
    return tape.simple([x], elements, tape.residual_width)


def _spectrogram(
    tape: Tape,
    shape: TransformerShape,
    tokens: Tokens,
    target: Tokens,
    grad_bytes: float,
) -> Value:
    """Record Whisper's input: conv, GELU, conv of stride 2, GELU, + positions; the
    text's table.
    """
    frames = 2 * tokens.count
    sound = image_input(tape, frames * shape.audio_channels)
    x = tape.simple(
        [sound],
        frames * shape.hidden,
        tape.compute_width,
        kept=[sound],
        weight_grad_bytes=grad_bytes,
    )
    x = tape.simple([x], x.elements, x.width, kept=[x])
    x = tape.simple([x], tokens.count * shape.hidden, tape.compute_width, kept=[x])
    x = tape.simple([x], x.elements, x.width, kept=[x])
    heard = tape.simple([x], x.elements, tape.residual_width)
    words = Value(target.count * shape.hidden, tape.residual_width)
    tape.ops.append(Op((), (words,)))
    both = Value(heard.elements + words.elements, tape.residual_width)
    return tape.record(Op((heard, words), (both,), views_gradient=True))


def head(
    tape: Tape,
    shape: TransformerShape,
    x: Value,
    tokens: Tokens,
    kind: str,
    *,
    tensor_degree: int = 1,
    fused_loss: bool = False,
    in_place_loss: bool = False,
    tied: bool = False,
) -> Value:
    """Record last norm, logits, cross entropy. `tied`: the logits' weight is the table.

    `in_place_loss`: Megatron's, which makes one fp32 copy of the logits and turns it
    into the softmax and then into the gradient (core/tensor_parallel/cross_entropy.py).
    Only Megatron's tensor ranks keep their part of the words for the loss. Other ranks
    gather the logits first: ``"lm_head": "colwise_gather_output"`` in the plans of
    transformers 5 (models/llama/modeling_llama.py), and
    ``ColwiseParallel(output_layouts=Replicate())`` in torch's tutorial of tensor
    parallelism.
    """
    if kind == "masked_lm":
        narrow = shape.embedding_width or shape.hidden
        x = linear(tape, x, shape.hidden, narrow, bias=True, component="head")
        x = norm(tape, shape, activation(tape, shape, x))
    elif shape.norm_place != "after":
        x = norm(tape, shape, x)
    if kind in ("sequence_classification", "image_classification", "none"):
        return _classify(tape, shape, x, tokens)
    if kind == "seq2seq_lm":
        x = tape.dropout(x, shape.hidden_dropout_ratio)
    vocab = max(1, shape.vocab // tensor_degree)
    width = shape.hidden
    if shape.embedding_width and shape.embedding_width != shape.hidden:
        width = shape.embedding_width
        if kind != "masked_lm":
            x = linear(
                tape, x, shape.hidden, width, bias=shape.biases, component="head"
            )
    masked = kind == "masked_lm"
    frozen = "embedding" if tied else "head"
    logits = linear(tape, x, width, vocab, bias=masked, component=frozen)
    if tape.saves and tensor_degree > 1 and not (in_place_loss or fused_loss):
        whole = logits.elements // vocab * shape.vocab
        logits = tape.simple([logits], whole, logits.width)
    if shape.final_softcap:
        scaled = tape.simple([logits], logits.elements, logits.width)
        bent = tape.simple([scaled], logits.elements, logits.width, keep_output=True)
        logits = tape.simple([bent], logits.elements, logits.width)
    if not tape.saves:
        return tape.cast(logits, 4.0)
    if fused_loss:
        loss = Value(1, 4.0)
        # The gradient overwrites the logits: the same storage, no new tensor.
        return tape.record(Op((logits,), (loss,), (logits,), in_place=True))
    if in_place_loss:
        wide = tape.cast(logits, 4.0)
        return tape.record(Op((wide,), (Value(1, 4.0),), (wide,), in_place=True))
    return _cross_entropy(tape, logits, upcast=kind == "causal_lm")


def _cross_entropy(tape: Tape, logits: Value, *, upcast: bool) -> Value:
    """Record log_softmax, which keeps its output. Backward makes two more of its size.

    Causal models cast their logits to fp32 first, and the result holds the 16-bit
    logits meanwhile. Autocast casts inside the loss.
    """
    wide = tape.cast(logits, 4.0) if upcast or tape.autocast else logits
    held = logits.size_bytes if wide is not logits else 0.0
    logs = tape.simple(
        [wide],
        logits.elements,
        wide.width,
        keep_output=True,
        forward_temp_bytes=held,
    )
    return tape.simple([logs], 1, 4.0)


def _classify(tape: Tape, shape: TransformerShape, x: Value, tokens: Tokens) -> Value:
    """Record the classifier on one row per sequence. The rest of x is only kept
    alive.
    """
    row = Value(tokens.batch * shape.hidden, x.width, root=x)
    tape.ops.append(Op((x,), (row,)))
    labels = max(1, shape.labels)
    scores = linear(tape, row, shape.hidden, labels, bias=True, component="head")
    return tape.simple([scores], 1, 4.0, kept_bytes=scores.size_bytes)

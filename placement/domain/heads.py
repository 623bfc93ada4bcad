"""The two ends of a model as tapes: tables at the start, logits and loss at the end."""

from placement.domain.blocks import (
    Tokens,
    activation,
    image_input,
    layer_norm,
)
from placement.domain.spec import TransformerShape
from placement.domain.tape import Op, Tape, Value


def embedding(
    tape: Tape, shape: TransformerShape, tokens: Tokens, *, table_elements: int
) -> Value:
    """Look tokens up (or cut an image into patches), norm, dropout.

    The table's gradient is dense: as large as the table however few rows were read.
    """
    # An encoder-decoder looks up two sequences: its source and its target.
    sequences = 2 if shape.attention == "encoder_decoder" else 1
    elements = sequences * tokens.count * shape.hidden
    grad_bytes = table_elements * tape.grad_width
    if shape.image_tokens:
        size = tokens.batch * shape.channels * shape.image_size**2
        pixels = image_input(tape, size)
        x = tape.simple(
            [pixels],
            elements,
            tape.compute_width,
            kept=[pixels],
            weight_grad_bytes=grad_bytes,
        )
        x = tape.simple([x], elements, tape.residual_width)
    else:
        ids = Value(tokens.count, 8, constant=True)
        x = tape.simple(
            [ids],
            elements,
            tape.residual_width,
            kept=[ids],
            weight_grad_bytes=grad_bytes,
        )
        if shape.rotary == "none" and not shape.alibi and shape.norm != "rmsnorm_t5":
            x = tape.add(x, Value(elements, tape.residual_width, constant=True))
    if shape.scaled_embedding:
        x = tape.simple([x], elements, x.width)
    if shape.embedding_norm:
        x = layer_norm(tape, shape, x)
    return tape.dropout(x, shape.embedding_dropout_ratio)


def head(
    tape: Tape,
    shape: TransformerShape,
    x: Value,
    tokens: Tokens,
    kind: str,
    *,
    tensor_degree: int = 1,
    fused_loss: bool = False,
) -> Value:
    """Last norm, logits, cross entropy."""
    if kind == "masked_lm":
        x = tape.linear(x, shape.hidden, shape.hidden, bias=True)
        x = layer_norm(tape, shape, activation(tape, shape, x))
    elif shape.norm_place != "after":
        x = layer_norm(tape, shape, x)
    if kind in ("sequence_classification", "image_classification", "none"):
        return _classify(tape, shape, x, tokens)
    if kind == "seq2seq_lm":
        x = tape.dropout(x, shape.hidden_dropout_ratio)
    vocab = max(1, shape.vocab // tensor_degree)
    logits = tape.linear(x, shape.hidden, vocab, bias=kind == "masked_lm")
    if shape.final_softcap:
        scaled = tape.simple([logits], logits.elements, logits.width)
        bent = tape.simple([scaled], logits.elements, logits.width, keep_output=True)
        logits = tape.simple([bent], logits.elements, logits.width)
    if not tape.saves:
        return tape.cast(logits, 4.0)
    if fused_loss:
        loss = Value(1, 4.0)
        # The gradient is written over the logits: the same storage, no new tensor.
        return tape.record(Op((logits,), (loss,), (logits,), in_place=True))
    return _cross_entropy(tape, logits, upcast=kind == "causal_lm")


def _cross_entropy(tape: Tape, logits: Value, *, upcast: bool) -> Value:
    """log_softmax keeps its output; backward makes two more of its size.

    Causal models cast their logits to fp32 first, and the answer holds the 16-bit
    logits meanwhile; autocast casts inside the loss.
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
    """One row per sequence through the classifier; the rest of x is only held."""
    row = Value(tokens.batch * shape.hidden, x.width, root=x)
    tape.ops.append(Op((x,), (row,)))
    labels = max(1, shape.labels)
    scores = tape.linear(row, shape.hidden, labels, bias=True)
    return tape.simple([scores], 1, 4.0, kept_bytes=scores.size_bytes)

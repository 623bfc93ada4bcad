"""Plain torch nets of the reference cases as tapes: ResNet, MLP, LSTM, UNet.

`plain_net(spec)` reads the published class name and its arguments, builds nothing, and
returns the whole net as one tape with its tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from placement.planner.memory.conv_operators import (
    Image,
    batch_norm,
    concatenate,
    convolve,
    convolve_up,
    group_norm,
    max_pool,
    mean_pool,
    recurrent_layer,
    relu_in_place,
    silu,
)
from placement.planner.memory.tape import Op, Tape, Value
from placement.planner.model.config_reader import ConfigFields
from placement.planner.values.errors import SpecInvalid
from telemetry.protocol.sentences import sentence

Shapes = list[tuple[int, ...]]


@dataclass(slots=True)
class PlainNet:
    """A whole net: its parameter tensors, buffers, and the tape of one forward."""

    tape: Tape
    source: Value
    loss: Value
    input_bytes: float
    """Bytes of the batch, labels included: alive from before forward until after the
    step.
    """
    shapes: Shapes = field(default_factory=list)
    buffer_elements: int = 0
    counters: int = 0
    """8-byte counters (BatchNorm's num_batches_tracked)."""


class _Builder:
    """Operators that record their own parameter tensors."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.shapes: Shapes = []
        self.buffers = 0
        self.counters = 0

    def conv(
        self, x: Image, channels: int, kernel: int, stride: int = 1, *, bias: bool
    ) -> Image:
        """Record a convolution padded by half its kernel."""
        self.shapes.append((channels, x.channels, kernel, kernel))
        if bias:
            self.shapes.append((channels,))
        pad = kernel // 2
        return convolve(
            self.tape, x, channels, kernel, stride=stride, padding=pad, bias=bias
        )

    def batch_norm(self, x: Image) -> Image:
        """Record a BatchNorm: two parameters, two buffers and a counter."""
        self.shapes += [(x.channels,)] * 2
        self.buffers += 2 * x.channels
        self.counters += 1
        return batch_norm(self.tape, x)

    def group_norm(self, x: Image, groups: int) -> Image:
        """Record a GroupNorm."""
        self.shapes += [(x.channels,)] * 2
        return group_norm(self.tape, x, groups)

    def linear(self, x: Value, inputs: int, outputs: int) -> Value:
        """Record a Linear with bias."""
        self.shapes += [(outputs, inputs), (outputs,)]
        return self.tape.linear(x, inputs, outputs, bias=True)


def plain_net(
    name: str, args: Mapping[str, Any], given: Mapping[str, Any], tape: Tape
) -> PlainNet:
    """Return the net of a class name and its arguments, on an empty tape.

    `given` is the case's `input`. Raises SpecInvalid by field.
    """
    reader = READERS.get(name)
    if reader is None:
        raise SpecInvalid(
            {
                "model.torch": sentence(
                    "'{name}' is not one of {readers}",
                    name=name[:60],
                    readers=", ".join(READERS),
                )
            }
        )
    return reader(ConfigFields(args), ConfigFields(given), tape)


def _net(build: _Builder, source: Value, loss: Value, input_bytes: float) -> PlainNet:
    return PlainNet(
        build.tape,
        source,
        loss,
        input_bytes,
        build.shapes,
        build.buffers,
        build.counters,
    )


def _pixels(tape: Tape, inputs: ConfigFields, channels: int) -> Image:
    batch = inputs.whole("batch", high=2**20)
    size = inputs.whole("size", high=2**14)
    width = 4.0 if tape.autocast else tape.compute_width
    value = Value(batch * channels * size**2, width, constant=True, foreign=True)
    tape.record(Op((), (value,)))
    return Image(value, batch, channels, size, size)


def _cross_entropy(tape: Tape, scores: Value) -> Value:
    """Record `F.cross_entropy(out.float(), y)`: log_softmax keeps its output."""
    held = scores.size_bytes if scores.width != 4.0 else 0.0
    wide = tape.cast(scores, 4.0)
    logs = tape.simple(
        [wide], wide.elements, 4.0, keep_output=True, forward_temp_bytes=held
    )
    return tape.simple([logs], 1, 4.0, kept_bytes=4)


def _whole_list(args: ConfigFields, name: str, default: Sequence[int]) -> list[int]:
    given = args.peek(name)
    if given is None:
        return list(default)
    fine = isinstance(given, list) and 0 < len(given) <= 16
    if not fine or any(type(n) is not int or not 0 < n <= 512 for n in given):
        raise SpecInvalid({name: sentence("must be a short list of whole numbers")})
    return list(given)


def _mlp(args: ConfigFields, inputs: ConfigFields, tape: Tape) -> PlainNet:
    din = args.whole("din", default=1024, high=2**24)
    dh = args.whole("dh", default=4096, high=2**24)
    depth = args.whole("depth", default=6, high=1024)
    dout = args.whole("dout", default=10, high=2**24)
    batch = inputs.whole("batch", high=2**20)
    _finish(args, inputs)
    build = _Builder(tape)
    width = 4.0 if tape.autocast else tape.compute_width
    source = Value(batch * din, width, constant=True, foreign=True)
    x = source
    sizes = [din, *[dh] * (depth - 1), dout]
    for index in range(depth):
        x = build.linear(x, sizes[index], sizes[index + 1])
        if index < depth - 1:
            x = tape.simple([x], x.elements, x.width, kept=[x])
    loss = _cross_entropy(tape, x)
    return _net(build, source, loss, source.size_bytes + 8 * batch)


def _char_lstm(args: ConfigFields, inputs: ConfigFields, tape: Tape) -> PlainNet:
    vocab = args.whole("vocab", default=8000, high=2**24)
    emb = args.whole("emb", default=512, high=2**20)
    hidden = args.whole("hidden", default=1024, high=2**20)
    layers = args.whole("layers", default=2, high=256)
    batch = inputs.whole("batch", high=2**20)
    steps = inputs.whole("seq", high=2**22)
    _finish(args, inputs)
    build = _Builder(tape)
    rows = batch * steps
    width = 4.0 if tape.autocast else tape.compute_width
    source = Value(rows, 8, constant=True, foreign=True)
    build.shapes.append((vocab, emb))
    x = tape.simple(
        [source], rows * emb, width, weight_grad_bytes=vocab * emb * tape.grad_width
    )
    # batch_first: the layers read a copy with time as the first axis.
    x = tape.simple([x], x.elements, x.width)
    for index in range(layers):
        size = emb if index == 0 else hidden
        build.shapes += [(4 * hidden, size), (4 * hidden, hidden)]
        build.shapes += [(4 * hidden,)] * 2
        x = recurrent_layer(
            tape, x, steps=steps, batch=batch, inputs=size, hidden=hidden
        )
    x = tape.simple([x], x.elements, x.width)
    x = build.linear(x, hidden, vocab)
    loss = _cross_entropy(tape, x)
    return _net(build, source, loss, 8 * rows)


def _resnet(args: ConfigFields, inputs: ConfigFields, tape: Tape) -> PlainNet:
    counts = _whole_list(args, "layers", (3, 4, 6, 3))
    block = args.word("block", default="bottleneck")
    classes = args.whole("num_classes", default=1000, high=2**24)
    width = args.whole("width", default=64, high=2**14)
    build = _Builder(tape)
    x = _pixels(tape, inputs, 3)
    _finish(args, inputs)
    source = x.value
    x = relu_in_place(tape, build.batch_norm(build.conv(x, width, 7, 2, bias=False)))
    x = max_pool(tape, x, 3, 2, 1)
    for stage, count in enumerate(counts):
        mid = width * 2**stage
        for index in range(count):
            stride = 2 if index == 0 and stage > 0 else 1
            x = _residual(build, x, mid, stride, deep=block == "bottleneck")
    pooled = mean_pool(tape, x)
    scores = build.linear(pooled, x.channels, classes)
    loss = _cross_entropy(tape, scores)
    return _net(build, source, loss, source.size_bytes + 8 * x.batch)


def _residual(build: _Builder, x: Image, mid: int, stride: int, *, deep: bool) -> Image:
    """Record a bottleneck (1x1, 3x3, 1x1) or basic block (3x3, 3x3), after its
    shortcut.
    """
    tape = build.tape
    out_channels = mid * 4 if deep else mid
    short = x
    if stride != 1 or x.channels != out_channels:
        short = build.batch_norm(build.conv(x, out_channels, 1, stride, bias=False))
    y = x
    plan = [(mid, 3, stride), (mid, 3, 1)]
    if deep:
        plan = [(mid, 1, 1), (mid, 3, stride), (out_channels, 1, 1)]
    for index, (channels, kernel, step) in enumerate(plan):
        y = build.batch_norm(build.conv(y, channels, kernel, step, bias=False))
        if index < len(plan) - 1:
            y = relu_in_place(tape, y)
    return relu_in_place(tape, y.over(tape.add(y.value, short.value)))


def _unet(args: ConfigFields, inputs: ConfigFields, tape: Tape) -> PlainNet:
    base = args.whole("c", default=32, high=2**14)
    depth = args.whole("depth", default=4, high=16)
    channels = args.whole("cin", default=3, high=4096)
    classes = args.whole("cout", default=2, high=2**16)
    build = _Builder(tape)
    x = _pixels(tape, inputs, channels)
    _finish(args, inputs)
    source, batch, size = x.value, x.batch, x.height

    def pair(given: Image, wide: int) -> Image:
        for _ in range(2):
            given = build.conv(given, wide, 3, bias=True)
            given = silu(tape, build.group_norm(given, 8))
        return given

    x = pair(x, base)
    skips = [x]
    for level in range(depth):
        x = pair(max_pool(tape, x, 2, 2, 0), base * 2 ** (level + 1))
        skips.append(x)
    skips.pop()
    for level in reversed(range(depth)):
        wide = base * 2**level
        build.shapes += [(x.channels, wide, 2, 2), (wide,)]
        up = convolve_up(tape, x, wide, 2)
        x = pair(concatenate(tape, up, skips.pop()), wide)
    scores = build.conv(x, classes, 1, bias=True)
    loss = _cross_entropy(tape, scores.value)
    return _net(build, source, loss, source.size_bytes + 8 * batch * size**2)


def _finish(args: ConfigFields, inputs: ConfigFields) -> None:
    """Raise the problems that either reader found."""
    args.problems |= {f"input.{name}": why for name, why in inputs.problems.items()}
    args.finish()


READERS: dict[str, Callable[[ConfigFields, ConfigFields, Tape], PlainNet]] = {
    "ResNet": _resnet,
    "MLP": _mlp,
    "CharLSTM": _char_lstm,
    "UNet": _unet,
}

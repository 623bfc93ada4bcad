"""Operators of convolutional and recurrent nets on a tape, and their saved tensors.

Sizes are elements of whole tensors (batch included). Sources: derivatives.yaml of torch
2.13, oneDNN's rnn_utils.cpp for the workspace of a recurrent layer.
"""

from dataclasses import dataclass

from placement.planner.memory.tape import Op, Tape, Value


@dataclass(frozen=True, slots=True)
class Image:
    """A batch of feature maps: the tensor and its axes."""

    value: Value
    batch: int
    channels: int
    height: int
    width: int

    @property
    def pixels(self) -> int:
        """Return the positions of one channel over the whole batch."""
        return self.batch * self.height * self.width

    def over(self, value: Value) -> "Image":
        """Return the same axes over another tensor."""
        return Image(value, self.batch, self.channels, self.height, self.width)


def convolve(
    tape: Tape,
    x: Image,
    channels: int,
    kernel: int,
    *,
    stride: int = 1,
    padding: int = 0,
    bias: bool = False,
) -> Image:
    """Record a convolution. It keeps its input, and backward makes the input's
    gradient.
    """
    height = (x.height + 2 * padding - kernel) // stride + 1
    width = (x.width + 2 * padding - kernel) // stride + 1
    weights = x.channels * channels * kernel**2 + (channels if bias else 0)
    elements = x.batch * channels * height * width
    # torch/aten/src/ATen/native/Convolution.cpp, use_mkldnn: with one thread a few fp32
    # images pass through 1x1 kernels as plain matrix products.
    plain = kernel == stride == 1 and x.batch < 16 and tape.compute_width == 4.0
    blocked = tape.reorders and not plain
    out = _product(tape, x.value, elements, weights, blocked)
    return Image(out, x.batch, channels, height, width)


def convolve_up(tape: Tape, x: Image, channels: int, stride: int) -> Image:
    """Record a transposed convolution with kernel = stride and a bias."""
    weights = x.channels * channels * stride**2 + channels
    height, width = x.height * stride, x.width * stride
    elements = x.batch * channels * height * width
    out = _product(tape, x.value, elements, weights, tape.reorders)
    return Image(out, x.batch, channels, height, width)


def _product(tape: Tape, x: Value, elements: int, weights: int, blocked: bool) -> Value:
    """Record a product of oneDNN, which computes in blocks of channels.

    It copies input and weights into blocks, and the output (in backward: the input's
    gradient) back.
    """
    read = tape.half(x)
    width = tape.compute_width
    copies = width * weights if tape.autocast else 0.0
    tape.copied_bytes += copies
    kept, held = tape.cached(read, copies)
    outputs, own = width * elements, width * weights
    inputs = 0.0 if read.constant else read.size_bytes
    return tape.simple(
        [read],
        elements,
        width,
        kept=[read],
        kept_bytes=kept,
        held_bytes=held,
        forward_temp_bytes=max(inputs + own, outputs) if blocked else 0.0,
        backward_temp_bytes=outputs + inputs + own if blocked else copies,
        weight_grad_bytes=tape.grad_width * weights,
    )


def batch_norm(tape: Tape, x: Image) -> Image:
    """Record a batch norm. It keeps its input, and mean and deviation of each
    channel.
    """
    out = tape.simple(
        [x.value],
        x.value.elements,
        x.value.width,
        kept=[x.value],
        kept_bytes=8 * x.channels,
        backward_temp_bytes=x.value.size_bytes if tape.reorders else 0.0,
        weight_grad_bytes=2 * x.channels * tape.grad_width,
    )
    return x.over(out)


def group_norm(tape: Tape, x: Image, groups: int) -> Image:
    """Record a group norm. It keeps its input, and mean and deviation of each group."""
    out = tape.simple(
        [x.value],
        x.value.elements,
        x.value.width,
        kept=[x.value],
        kept_bytes=8 * x.batch * groups,
        weight_grad_bytes=2 * x.channels * tape.grad_width,
    )
    return x.over(out)


def relu_in_place(tape: Tape, x: Image) -> Image:
    """Record a ReLU that overwrites its input and keeps it: no new tensor in forward,
    one in backward.
    """
    out = Value(x.value.elements, x.value.width, root=x.value)
    tape.record(Op((x.value,), (out,), (out,)))
    return x.over(out)


def silu(tape: Tape, x: Image) -> Image:
    """Record a SiLU. It keeps its input."""
    out = tape.simple([x.value], x.value.elements, x.value.width, kept=[x.value])
    return x.over(out)


def max_pool(tape: Tape, x: Image, kernel: int, stride: int, padding: int) -> Image:
    """Record max pooling. It keeps its input, and the index of each maximum (8
    bytes).
    """
    height = (x.height + 2 * padding - kernel) // stride + 1
    width = (x.width + 2 * padding - kernel) // stride + 1
    elements = x.batch * x.channels * height * width
    out = tape.simple(
        [x.value],
        elements,
        x.value.width,
        kept=[x.value],
        kept_bytes=8 * elements,
    )
    return Image(out, x.batch, x.channels, height, width)


def mean_pool(tape: Tape, x: Image) -> Value:
    """Record the mean over the pixels. It keeps nothing."""
    return tape.simple([x.value], x.batch * x.channels, x.value.width)


def concatenate(tape: Tape, left: Image, right: Image) -> Image:
    """Record a concatenation in the channels.

    Both gradients are views of the output's, which lives until the last of them is
    used.
    """
    elements = left.value.elements + right.value.elements
    out = Value(elements, max(left.value.width, right.value.width))
    tape.record(Op((left.value, right.value), (out,), views_gradient=True))
    channels = left.channels + right.channels
    return Image(out, left.batch, channels, left.height, left.width)


def recurrent_layer(
    tape: Tape, x: Value, *, steps: int, batch: int, inputs: int, hidden: int
) -> Value:
    """Record one LSTM layer as oneDNN runs it (mkldnn_rnn_layer).

    It keeps input, output, both weights' copies under autocast, and a workspace of
    gates and states.
    """
    read = tape.half(x)
    weights = 4 * hidden * (inputs + hidden)
    biases = 8 * hidden
    width = tape.compute_width
    copies = width * (weights + biases) if tape.autocast else 0.0
    tape.copied_bytes += copies
    elements = steps * batch * hidden
    gates = 4 * elements * width
    kept, held = tape.cached(read, copies)
    return tape.simple(
        [read],
        elements,
        width,
        kept=[read],
        keep_output=True,
        held_bytes=held,
        kept_bytes=kept + _workspace_bytes(steps, batch, hidden, width),
        forward_temp_bytes=width * weights + gates,
        # Reordered weights, their gradients before they are reordered, and those of the
        # gates.
        backward_temp_bytes=(width + 4.0) * weights + gates,
        weight_grad_bytes=tape.grad_width * (weights + biases),
    )


def _workspace_bytes(steps: int, batch: int, hidden: int, width: float) -> float:
    """Return the bytes of oneDNN's training workspace.

    It has four gates, layer and iteration states in the compute width, cell states and
    differences in fp32, and one output.
    """

    def padded(size: int, element_bytes: float) -> int:
        line = int(64 / element_bytes)
        whole = -(-size // line) * line
        return whole + line if whole % 256 == 0 else whole

    gates = steps * batch * padded(4 * hidden, width) * width
    states = 2 * (steps + 1) * batch * padded(hidden, width) * width
    cells = 2 * (steps + 1) * batch * padded(hidden, 4.0) * 4.0
    return gates + 2 * states + 3 * cells + steps * batch * hidden * width

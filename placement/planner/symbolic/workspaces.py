"""Memory of CPU kernels beyond their results, and results that meta kernels misjudge.

oneDNN computes convolutions on blocked copies: channels in groups of 16 (oneDNN,
"Understanding Memory Formats", nChw16c), so a convolution holds copies of input, weight
and output for a moment. Its LSTM keeps a workspace from forward to backward
(src/cpu/rnn/rnn_utils.cpp, ``set_workspace_sizes``): gates, cells, states and their
gradients for each step, page by page. Checked on torch 2.13 with its allocator's own
events. Other instruction sets block by 8 instead of 16.
"""

import math
from typing import Any

import torch

from placement.planner.symbolic.dispatch_mode import StepMode
from placement.planner.symbolic.shapes import Layout

Args = tuple[Any, ...]
Named = dict[str, Any]
BLOCK_CHANNELS = 16
FEW_CHANNELS = 4
"""Inputs of so few channels (images) are not blocked."""
PAGE_BYTES = 4096
CACHE_LINE_BYTES = 64
LSTM_GATES = 4


class Workspaces:
    """The special functions of kernels in one StepMode.

    For a Gpu only the LSTM's reserve is kept. cuDNN's other workspaces depend on the
    algorithm that it finds fastest, and belong to the workspaces of the interval.
    """

    def __init__(self, mode: StepMode, accelerator: str) -> None:
        self.mode = mode
        if accelerator == "cuda":
            mode.special["aten::mkldnn_rnn_layer"] = self.reserve
            return
        mode.special |= {
            "aten::convolution": self.convolution,
            "aten::convolution_backward": self.convolution_backward,
            "aten::mkldnn_rnn_layer": self.recurrent,
            "aten::mkldnn_rnn_layer_backward": self.recurrent_backward,
        }

    def reserve(self, func: Any, args: Args, named: Named) -> Any:
        """Return the results with cuDNN's reserve.

        It has gates, cell and output of every step (cudnnRNNForward).
        """
        results = self.mode.book.answer(func, args, named)
        source, hidden = args[0], args[10]
        rows = source.shape[0] * source.shape[1]
        size = rows * hidden * (LSTM_GATES + 2) * source.dtype.itemsize
        made = [self.mode.made(one) for one in results[:3]]
        return (*made, self.mode.made(Layout((size,), (1,), torch.uint8)))

    def convolution(self, func: Any, args: Args, named: Named) -> Any:
        """Count blocked input, weight and output, and then the output in plain
        order.
        """
        source, weight = args[0], args[1]
        result = self.mode.book.answer(func, args, named)
        out = layout_bytes(result)
        if not plain(source, weight, stride=args[3]):
            blocked_out = blocked(result.shape, result.dtype)
            copies = blocked_weight(weight)
            if source.shape[1] > FEW_CHANNELS:
                copies += blocked(source.shape, source.dtype)
            # A transposed convolution makes its plain output twice.
            again = out * (2 if args[6] else 1)
            self.mode.tracker.moment(blocked_out + max(copies, again))
        return self.mode.ordinary(func, args, named)

    def convolution_backward(self, func: Any, args: Args, named: Named) -> Any:
        """Count first the input's gradient, then the weight's, each on blocked
        copies.
        """
        grad, source, weight = args[0], args[1], args[2]
        wanted = args[10] if len(args) > 10 else named["output_mask"]
        if not plain(source, weight, stride=args[4]):
            grads = blocked(grad.shape, grad.dtype)
            few = source.shape[1] <= FEW_CHANNELS
            inputs = source.nbytes if few else blocked(source.shape, source.dtype)
            weights = blocked_weight(weight)
            steps = [0]
            held = 0
            if wanted[0]:
                steps.append(grads + weights + inputs)
                held = source.nbytes
                steps.append(held + inputs)
            if wanted[1]:
                # 16-bit weight gradients are added up in fp32.
                sums = 4 * weight.numel() if weight.dtype.itemsize == 2 else 0
                steps.append(held + grads + inputs + weights + sums)
                steps.append(held + weights + weight.nbytes)
            self.mode.tracker.moment(max(steps))
        return self.mode.ordinary(func, args, named)

    def recurrent(self, func: Any, args: Args, named: Named) -> Any:
        """Return an LSTM layer's outputs and the workspace that backward will read."""
        results = self.mode.book.answer(func, args, named)
        source, weight = args[0], args[1]
        steps, batch = source.shape[0], source.shape[1]
        size = lstm_workspace_bytes(
            steps=steps,
            batch=batch,
            inputs=weight.shape[1],
            hidden=args[10],
            element_bytes=source.dtype.itemsize,
        )
        made = [self.mode.made(one) for one in results[:3]]
        workspace = self.mode.made(Layout((size,), (1,), torch.uint8))
        # The weights in the kernel's order, if that is another one, and the gates.
        self.mode.tracker.moment(
            by_input(args[1]) + by_input(args[2]) + gates_bytes(args[1], steps * batch)
        )
        return (*made, workspace)

    def recurrent_backward(self, func: Any, args: Args, named: Named) -> Any:
        """Return gradients, which are fp32 for weights of every type."""
        result = self.mode.ordinary(func, args, named)
        inner, outer = args[1], args[2]
        if inner.dtype.itemsize == 2:
            # Sums in fp32 beside the 16-bit weights.
            sums = 4 * (inner.numel() + outer.numel())
            self.mode.tracker.moment(sums + inner.nbytes * 2 + outer.nbytes)
            return result
        rows = args[0].shape[0] * args[0].shape[1]
        weights = by_gate(inner) + by_gate(outer)
        grads = by_input(inner) + by_input(outer)
        given = args[10]
        # The kernel reads its output's gradient step by step.
        steps = given.nbytes if given is not None and not given.is_contiguous() else 0
        self.mode.tracker.moment(weights + grads + steps + gates_bytes(inner, rows))
        return result


def by_input(weight: torch.Tensor) -> int:
    """Return the bytes of a gate weight kept row by input, or 0 if rows need no
    gaps.
    """
    size = weight.dtype.itemsize
    width = row(weight.shape[0], size)
    return 0 if width == weight.shape[0] else weight.shape[1] * width * size


def by_gate(weight: torch.Tensor) -> int:
    """Return the bytes of a gate weight kept row by gate, or 0 if rows need no gaps."""
    size = weight.dtype.itemsize
    width = row(weight.shape[1], size)
    return 0 if width == weight.shape[1] else weight.shape[0] * width * size


def gates_bytes(weight: torch.Tensor, rows: int) -> int:
    """Return the gates of all steps before their functions. 16-bit kernels need no
    copy.
    """
    if weight.dtype.itemsize == 2:
        return 0
    return rows * row(weight.shape[0], 4) * 4


def plain(source: torch.Tensor, weight: torch.Tensor, stride: Any) -> bool:
    """Return whether a convolution is a product of plain matrices: fp32, 1 x 1, no
    stride.
    """
    window = math.prod(weight.shape[2:])
    return window == 1 and max(stride) == 1 and source.dtype == torch.float32


def layout_bytes(layout: Layout) -> int:
    """Return the bytes of a dense tensor of this layout."""
    return math.prod(layout.shape) * layout.dtype.itemsize


def padded(channels: int) -> int:
    """Return channels in whole blocks."""
    return -(-channels // BLOCK_CHANNELS) * BLOCK_CHANNELS


def blocked(shape: Any, dtype: torch.dtype) -> int:
    """Return the bytes of an image batch in blocked order."""
    return shape[0] * padded(shape[1]) * math.prod(shape[2:]) * dtype.itemsize


def blocked_weight(weight: torch.Tensor) -> int:
    """Return the bytes of a convolution's weight in blocked order."""
    out, inner, *window = weight.shape
    both = padded(out) * (inner if inner <= FEW_CHANNELS else padded(inner))
    return both * math.prod(window) * weight.dtype.itemsize


def row(elements: int, element_bytes: int) -> int:
    """Return the elements from one row to the next: whole cache lines, never 256
    apart.
    """
    line = CACHE_LINE_BYTES // element_bytes
    width = -(-elements // line) * line
    return width + line if width % 256 == 0 else width


def lstm_workspace_bytes(
    *, steps: int, batch: int, inputs: int, hidden: int, element_bytes: int
) -> int:
    """Return the bytes that one LSTM layer keeps from forward to backward.

    >>> lstm_workspace_bytes(steps=32, batch=4, inputs=64, hidden=128, element_bytes=4)
    1011712
    """
    wide = max(inputs, hidden)
    cells = 2 * (steps + 1) * batch
    gates = steps * batch * row(LSTM_GATES * hidden, element_bytes) * element_bytes
    outputs = steps * batch * row(hidden, element_bytes) * element_bytes
    states = cells * row(wide, element_bytes) * element_bytes
    kept = cells * hidden * element_bytes
    state_grads = cells * row(wide, 4) * 4
    cell_grads = cells * hidden * 4
    parts = (gates, outputs, states, kept, state_grads, state_grads, cell_grads)
    return sum(-(-part // PAGE_BYTES) * PAGE_BYTES for part in parts)

"""The plain torch models that the memory cases name, written for this package.

They run the same operators in the same order as the measured networks. In-place
operators stay in place, and parameters are created in the same order.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from placement.planner.values.errors import SpecInvalid

MOST_ARGUMENT = 2**20
MOST_LAYERS = 4096


def conv(inner: int, outer: int, window: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution without bias, padded to keep the image's size."""
    return nn.Conv2d(inner, outer, window, stride, window // 2, bias=False)


class Residual(nn.Module):
    """A block of a residual net: two convolutions, or three with a bottleneck."""

    def __init__(self, inner: int, middle: int, stride: int, widening: int) -> None:
        super().__init__()
        outer = middle * widening
        plan = (
            [(inner, middle, 3, stride), (middle, middle, 3, 1)]
            if widening == 1
            else [
                (inner, middle, 1, 1),
                (middle, middle, 3, stride),
                (middle, outer, 1, 1),
            ]
        )
        self.layers = nn.ModuleList()
        for one in plan:
            self.layers += [conv(*one), nn.BatchNorm2d(one[1])]
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module | None = None
        if stride != 1 or inner != outer:
            self.shortcut = nn.Sequential(
                conv(inner, outer, 1, stride), nn.BatchNorm2d(outer)
            )
        self.bottleneck = widening > 1

    def forward(self, x: Tensor) -> Tensor:
        """Return the input plus the convolutions' result."""
        # A basic block computes its shortcut last, a bottleneck first, as was measured.
        kept = x if self.shortcut is None or not self.bottleneck else self.shortcut(x)
        y = x
        last = len(self.layers) - 2
        for place in range(0, len(self.layers), 2):
            y = self.layers[place + 1](self.layers[place](y))
            if place != last:
                y = self.relu(y)
        if self.shortcut is not None and not self.bottleneck:
            kept = self.shortcut(kept)
        return self.relu(y + kept)


class ResNet(nn.Module):
    """Deep residual learning, arXiv:1512.03385."""

    def __init__(
        self,
        layers: Sequence[int] = (3, 4, 6, 3),
        block: str = "bottleneck",
        num_classes: int = 1000,
        width: int = 64,
    ) -> None:
        super().__init__()
        widening = {"bottleneck": 4, "basic": 1}[block]
        self.stem = nn.Sequential(
            conv(3, width, 7, 2),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks: list[nn.Module] = []
        inner = width
        for stage, count in enumerate(layers):
            middle = width * 2**stage
            for place in range(count):
                stride = 2 if stage and place == 0 else 1
                blocks.append(Residual(inner, middle, stride, widening))
                inner = middle * widening
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inner, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores of images."""
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class MLP(nn.Module):
    """Linear layers with GELU between them."""

    def __init__(
        self, din: int = 1024, dh: int = 4096, depth: int = 6, dout: int = 10
    ) -> None:
        super().__init__()
        widths = [din, *([dh] * (depth - 1)), dout]
        parts: list[nn.Module] = []
        for inner, outer in pairwise(widths):
            parts += [nn.Linear(inner, outer), nn.GELU()]
        self.net = nn.Sequential(*parts[:-1])

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores of vectors."""
        return self.net(x)


class CharLSTM(nn.Module):
    """A recurrent language model."""

    def __init__(
        self, vocab: int = 8000, emb: int = 512, hidden: int = 1024, layers: int = 2
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab, emb)
        self.rnn = nn.LSTM(emb, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, vocab)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of the next token at each place."""
        return self.head(self.rnn(self.table(x))[0])


def twice(inner: int, outer: int) -> nn.Sequential:
    """Return two convolutions, each normalized in eight groups."""
    parts: list[nn.Module] = []
    for one in (inner, outer):
        parts += [nn.Conv2d(one, outer, 3, padding=1), nn.GroupNorm(8, outer)]
        parts.append(nn.SiLU())
    return nn.Sequential(*parts)


class UNet(nn.Module):
    """Segmentation: down, up, and bridges between, arXiv:1505.04597."""

    def __init__(
        self, c: int = 32, depth: int = 4, cin: int = 3, cout: int = 2
    ) -> None:
        super().__init__()
        widths = [c * 2**level for level in range(depth + 1)]
        self.enter = twice(cin, c)
        self.down = nn.ModuleList([twice(a, b) for a, b in pairwise(widths)])
        upward = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList([nn.ConvTranspose2d(a, b, 2, 2) for a, b in upward])
        self.join = nn.ModuleList([twice(a, b) for a, b in upward])
        self.leave = nn.Conv2d(c, cout, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return class scores of every pixel."""
        bridges = [self.enter(x)]
        for down in self.down:
            bridges.append(down(functional.max_pool2d(bridges[-1], 2)))
        x = bridges.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([up(x), bridges.pop()], 1))
        return self.leave(x)


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    one.__name__: one for one in (ResNet, MLP, CharLSTM, UNet)
}


def network(name: str, args: dict[str, Any]) -> nn.Module:
    """Return a plain model by its class name.

    Raises:
        SpecInvalid: no such model, or arguments that it does not accept.
    """
    if name not in NETWORKS:
        raise SpecInvalid({"model.torch": f"must be one of {', '.join(NETWORKS)}"})
    for key, value in args.items():
        numbers = value if isinstance(value, list) else [value]
        if len(numbers) > MOST_LAYERS or not all(
            isinstance(one, str) or (type(one) is int and 1 <= one <= MOST_ARGUMENT)
            for one in numbers
        ):
            raise SpecInvalid({f"model.args.{key[:40]}": "is not a size"})
    try:
        return NETWORKS[name](**args)
    except (TypeError, KeyError, ValueError, RuntimeError) as error:
        raise SpecInvalid({"model.args": " ".join(str(error).split())[:200]}) from error

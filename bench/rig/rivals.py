"""Other ways to split layers over unequal Gpus: accelerate, and four simple rules.

Each takes layer bytes and free bytes and returns the bytes per Gpu and the layers that
did not fit (spilled to the CPU, or over a Gpu's memory). accelerate sees the same
layers as modules that may not be cut, like a transformer's blocks.
"""

import logging
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
GIB = 2**30
CPU_BYTES = 2**50


@dataclass(frozen=True)
class Outcome:
    """Bytes per Gpu in the Gpus' order, and whether all of the model is on them."""

    loads: tuple[int, ...]
    whole: bool


Rival = Callable[[Sequence[int], Sequence[int]], Outcome]


def accelerate_module(layers: Sequence[int]) -> Any:
    """Return the layers as a model on meta: one uncut block each, of so many bytes."""
    import torch

    class Layer(torch.nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            data = torch.empty(size, dtype=torch.uint8, device="meta")
            self.weight = torch.nn.Parameter(data, requires_grad=False)

    return torch.nn.Sequential(*(Layer(size) for size in layers))


def accelerate_map(
    model: Any, layers: Sequence[int], frees: Sequence[int], *, balanced: bool
) -> Outcome:
    """Return infer_auto_device_map, with or without get_balanced_memory before it."""
    from accelerate.utils.modeling import get_balanced_memory, infer_auto_device_map

    # It warns about every Gpu that this machine does not have, but still counts it.
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    memory: dict[int | str, int] = {**dict(enumerate(frees)), "cpu": CPU_BYTES}
    if balanced:
        memory = get_balanced_memory(
            model, max_memory=memory, no_split_module_classes=["Layer"]
        )
        memory["cpu"] = CPU_BYTES
    found = infer_auto_device_map(
        model, max_memory=memory, no_split_module_classes=["Layer"]
    )
    loads = [0] * len(frees)
    spilled = 0
    for name, place in found.items():
        size = sum(layers) if name == "" else layers[int(str(name).split(".")[0])]
        if isinstance(place, int):
            loads[place] += size
        else:
            spilled += size
    return Outcome(tuple(loads), spilled == 0)


def _cut(layers: Sequence[int], frees: Sequence[int], bounds: Sequence[int]) -> Outcome:
    loads = tuple(
        sum(layers[a:b])
        for a, b in zip((0, *bounds), (*bounds, len(layers)), strict=True)
    )
    fits = all(load <= free for load, free in zip(loads, frees, strict=True))
    return Outcome(loads, fits)


def equal_layers(layers: Sequence[int], frees: Sequence[int]) -> Outcome:
    """Put the same number of layers on every Gpu, and the remaining ones on the
    first.
    """
    each, more = divmod(len(layers), len(frees))
    bounds = [i * each + min(i, more) for i in range(1, len(frees))]
    return _cut(layers, frees, bounds)


def proportional(layers: Sequence[int], frees: Sequence[int]) -> Outcome:
    """Cut where the bytes so far exceed each Gpu's share of the free memory."""
    whole, room = sum(layers), sum(frees)
    bounds, at, before, share = [], 0, 0, 0
    for free in frees[:-1]:
        share += free
        goal = whole * share / room
        while at < len(layers) and before + layers[at] / 2 <= goal:
            before += layers[at]
            at += 1
        bounds.append(at)
    return _cut(layers, frees, bounds)


def first_fit(layers: Sequence[int], frees: Sequence[int]) -> Outcome:
    """Fill the roomiest Gpu first, then the next."""
    loads = [0] * len(frees)
    order = sorted(range(len(frees)), key=lambda gpu: -frees[gpu])
    for size in layers:
        while order and loads[order[0]] + size > frees[order[0]]:
            order.pop(0)
        if not order:
            return Outcome(tuple(loads), False)
        loads[order[0]] += size
    return Outcome(tuple(loads), True)


SIMPLE: dict[str, Rival] = {
    "proportional cuts": proportional,
    "roomiest first, to the brim": first_fit,
    "equal layers": equal_layers,
}


def instances(count: int, seed: int) -> list[tuple[list[int], list[int]]]:
    """Return models and busy Gpus, some tight, some loose, the same on every run.

    2 to 6 Gpus of 8 to 80 GiB, each up to three quarters used by others; 4 to 48 layers
    with a larger head and tail, 45 to 97 % of the total free memory.
    """
    draw = random.Random(seed)
    made = []
    while len(made) < count:
        frees = [
            int(draw.choice([8, 11, 16, 24, 24, 40, 80]) * GIB * draw.uniform(0.25, 1))
            for _ in range(draw.randint(2, 6))
        ]
        layers = [draw.uniform(0.6, 1.4) for _ in range(draw.randint(4, 48))]
        if draw.random() < 0.5:
            layers = [1.0] * len(layers)
        layers[0] *= draw.uniform(0.5, 3)
        layers[-1] *= draw.uniform(0.5, 3)
        scale = draw.uniform(0.45, 0.97) * sum(frees) / sum(layers)
        made.append(([int(size * scale) for size in layers], frees))
    return made

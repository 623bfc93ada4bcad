"""Bytes of all-gathered parameters alive around each layer (FSDP, ZeRO-3).

FSDP2 (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py), one group per block
and one for both ends, traced with bench/measure_ranks.py:

* unshard gathers into one buffer and copies it into whole weights. In forward the
  buffer is freed only after the next group has been copied. In backward it is freed at
  once, but the group before is prefetched.
* after a block's backward its weights are freed, and a reduce-scatter input as large as
  its gradients is made and kept until the next block has finished.
* the ends stay whole from the first forward until the end of backward, and so do their
  whole gradients.

ZeRO-3 (stage3 defaults) keeps up to `max_live_parameters` = 1e9 gathered parameters
from forward until their backward. Offloaded weights are on the Gpu for the running
layer and the next one. Gloo copies the data that it sends (CPU only).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from placement.planner.memory.layer_costs import LayerCost

ZERO3_LIVE_PARAMETERS = 1_000_000_000
"""DeepSpeed's default of stage3_max_live_parameters."""
ENDS = ("embedding", "head")


@dataclass(slots=True)
class Gathers:
    """Bytes around each layer of a stage, beyond those that stay."""

    forward: list[float]
    """Bytes alive while the layer runs forward."""
    fetching: list[float]
    """Most bytes alive while its weights are gathered."""
    backward: list[float]
    """Bytes alive while it runs backward."""
    refetching: list[float]
    reducing: list[float]
    """Most bytes alive while its gradients are reduced, the whole ones included."""
    whole_ends: bool = False
    """The ends' gradients stay whole until the end of backward."""
    share: float = 0.0
    empty: bool = field(default=False)
    even: bool = True
    """Equal layers among equal layers have equal bytes."""


def gathers_of(
    stage: Sequence[LayerCost], how: str, degree: int, *, gloo: bool
) -> Gathers:
    """Return the bytes of gathering `how` (see ranks.Rank.gather) around each layer."""
    if how == "fsdp":
        return _fsdp(stage, degree, gloo)
    if how == "zero3":
        return _zero3(stage, gloo)
    if how == "layers":
        return _layer_by_layer(stage)
    zeros = [0.0] * len(stage)
    return Gathers(zeros, zeros, zeros, zeros, zeros, empty=True)


def _fsdp(stage: Sequence[LayerCost], degree: int, gloo: bool) -> Gathers:
    copy = 1.0 if gloo else 0.0
    ends = float(sum(c.gathered_bytes for c in stage if c.kind in ENDS))
    sizes = [0.0 if c.kind in ENDS else float(c.gathered_bytes) for c in stage]
    grads = [0.0 if c.kind in ENDS else _reduced(c) for c in stage]
    root_grads = sum(_reduced(c) for c in stage if c.kind in ENDS)
    forward, fetching = [], []
    held = ends
    for size in sizes:
        if size:
            fetching.append(ends + held + size + max(copy * size, size))
            forward.append(ends + 2 * size)
            held = size
        else:
            fetching.append(ends + max(ends, copy * ends, held))
            forward.append(ends + held)
    backward, refetching, reducing = [], [], []
    for index, size in enumerate(sizes):
        before = _near(sizes, index - 1, -1)
        waiting = _near(grads, index + 1, 1)
        alive = ends + waiting + size + before
        backward.append(alive)
        refetching.append(max(ends + waiting + 2 * size, alive + copy * before))
        if size:
            grad = grads[index]
            last = copy * grad / degree
            reducing.append(ends + before + 2 * grad + last)
        else:
            reducing.append(2 * root_grads if index == 0 else 0.0)
    return Gathers(forward, fetching, backward, refetching, reducing, True, 1 / degree)


def _near(sizes: Sequence[float], index: int, step: int) -> float:
    """Return the nearest block's size from an index on; 0 beyond the ends."""
    while 0 <= index < len(sizes):
        if sizes[index]:
            return sizes[index]
        index += step
    return 0.0


def _reduced(cost: LayerCost) -> float:
    """Return whole gradients in the width in which they are computed."""
    if not cost.elements:
        return 0.0
    return cost.gathered_bytes * cost.trained_elements / cost.elements


def _zero3(stage: Sequence[LayerCost], gloo: bool) -> Gathers:
    forward, fetching = [], []
    live = 0.0
    for cost in stage:
        width = cost.gathered_bytes / max(1, cost.elements)
        most = max(ZERO3_LIVE_PARAMETERS * width, float(cost.gathered_bytes))
        live = min(live + cost.gathered_bytes, most)
        forward.append(live)
        copy = width * cost.largest if gloo else 0.0
        fetching.append(live + copy)
    sent = [c.gathered_bytes / max(1, c.elements) * c.largest for c in stage]
    reducing = [
        alive + (2.0 if gloo else 1.0) * size
        for alive, size in zip(forward, sent, strict=True)
    ]
    return Gathers(forward, fetching, forward, fetching, reducing, even=False)


def _layer_by_layer(stage: Sequence[LayerCost]) -> Gathers:
    sizes = [float(cost.gathered_bytes) for cost in stage]
    ahead = [
        size + (sizes[i + 1] if i + 1 < len(sizes) else 0.0)
        for i, size in enumerate(sizes)
    ]
    back = [size + (sizes[i - 1] if i else 0.0) for i, size in enumerate(sizes)]
    zeros = [0.0] * len(sizes)
    return Gathers(ahead, ahead, back, back, zeros)

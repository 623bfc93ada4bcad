"""The learning rate and the gradients of one step of recipe ``fine-tune``."""

import math
from collections.abc import Sequence

import torch
from torch import distributed
from torch.distributed.tensor import DTensor

from placement.agent.runtime.loss_scale import local


def rate_ratio(step: int, steps: int, *, schedule: str, warmup_pct: float) -> float:
    """Return the part of the highest learning rate that a step has.

    It rises in equal steps during the warmup, and then falls to 0 after the last step:
    in a line, or as half a cosine (arXiv:1608.03983 without restarts).

    Args:
        step: from 0.
        steps: of the whole training.
        schedule: constant, linear, cosine.
        warmup_pct: part of the steps, in percent.

    >>> [rate_ratio(n, 4, schedule="linear", warmup_pct=0) for n in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    >>> [rate_ratio(n, 4, schedule="constant", warmup_pct=50) for n in range(4)]
    [0.5, 1.0, 1.0, 1.0]
    >>> round(rate_ratio(3, 4, schedule="cosine", warmup_pct=50), 3)
    0.5
    """
    warmup = round(steps * warmup_pct / 100)
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    if schedule == "linear":
        return 1 - done
    return (1 + math.cos(math.pi * done)) / 2


def clip_gradients(
    params: Sequence[torch.Tensor],
    most: float,
    *,
    ranks: int,
    device: torch.device,
    staged: bool = False,
    shared: torch.Tensor | None = None,
) -> float:
    """Scale the gradients so that their common norm is at most a limit.

    A gradient that several ranks have in whole counts once.

    Args:
        params: of this rank.
        most: the limit.
        ranks: those with the same layers.
        device: of the sum.
        staged: other ranks have other layers.
        shared: one of `params` that ranks of another stage have too and count.

    Returns:
        The norm before.
    """
    grads = [p.grad for p in params if p.grad is not None]
    own = None if shared is None else shared.grad
    counted = [grad for grad in grads if grad is not own]
    parts = [_parts_of(grad) for grad in counted]
    is_cut = staged or any(count > 1 for count in parts)
    total = torch.zeros((), device=device)
    for grad, count in zip(counted, parts, strict=True):
        square = local(grad).float().square().sum().to(device)
        # The sum over all ranks has it once for each rank that has the same part.
        total += square * count / ranks if is_cut else square
    if is_cut:
        distributed.all_reduce(total)
    norm = float(total.sqrt())
    if norm > most:
        for grad in grads:
            local(grad).mul_(most / norm)
    return norm


def _parts_of(grad: torch.Tensor) -> int:
    """Return the number of ranks that together have a gradient once."""
    if not isinstance(grad, DTensor):
        return 1
    sizes = zip(grad.placements, grad.device_mesh.shape, strict=True)
    return math.prod(size for place, size in sizes if not place.is_replicate())

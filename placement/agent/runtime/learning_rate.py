"""The learning rate and the gradients of one step of recipe ``fine-tune``."""

import math
from collections.abc import Sequence

import torch
from torch import distributed

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
    group: distributed.ProcessGroup | None,
    device: torch.device,
) -> float:
    """Scale the gradients so that their common norm is at most a limit.

    Args:
        params: of this rank.
        most: the limit.
        group: the ranks that each hold a shard of every gradient; None: they are whole.
        device: of the sum.

    Returns:
        The norm before.
    """
    grads = [local(p.grad) for p in params if p.grad is not None]
    total = torch.zeros((), device=device)
    for grad in grads:
        total += grad.float().square().sum().to(device)
    if group is not None:
        distributed.all_reduce(total, group=group)
    norm = float(total.sqrt())
    if norm > most:
        for grad in grads:
            grad.mul_(most / norm)
    return norm

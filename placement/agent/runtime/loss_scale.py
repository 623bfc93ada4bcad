"""Loss scaling for fp16 in which all ranks agree.

Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2: the loss is
multiplied by a scale, and gradients are divided by it. A step with a gradient that is
not finite is left out and the scale halved. After many good ones it is doubled. torch's
own scaler decides in each process alone, but stages of a pipeline must decide together.
"""

from collections.abc import Iterable

import torch
from torch import distributed
from torch.distributed.tensor import DTensor

FIRST_SCALE = 2.0**16
GROWS_AFTER_STEPS = 2000


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor on this rank."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class LossScale:
    """A factor on the loss. Always 1 if it is not needed."""

    def __init__(self, device: torch.device, *, needed: bool) -> None:
        self.device = device
        self.needed = needed
        self.factor = FIRST_SCALE if needed else 1.0
        self.good_steps = 0
        self.left_out = 0

    def settle(self, parameters: Iterable[torch.nn.Parameter]) -> bool:
        """Divide the gradients. Return whether all ranks may take the step."""
        if not self.needed:
            return True
        grads = [local(p.grad) for p in parameters if p.grad is not None]
        bad = torch.zeros((), device=self.device)
        for grad in grads:
            grad.div_(self.factor)
            bad += (~torch.isfinite(grad)).any().to(self.device)
        distributed.all_reduce(bad)
        if bad > 0:
            self.factor /= 2
            self.good_steps = 0
            self.left_out += 1
            return False
        self.good_steps += 1
        if self.good_steps % GROWS_AFTER_STEPS == 0:
            self.factor *= 2
        return True

"""Optimizer state and step in the node's memory, or on its drive.

The weights stay on the Gpu. The optimizer's copy of them and its state are in the
processor's memory. Gradients are copied there, the step is taken there, and weights are
copied back (Ren et al., "ZeRO-Offload", USENIX ATC 2021). On the drive the same tensors
are mappings of files, which the system caches in free memory (compare Rajbhandari et
al., "ZeRO-Infinity", SC 2021, which reads and writes itself).
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

DRIVE = Path("offloaded")
"""In the Job's own folder. It is removed with the folder."""


class HostStep:
    """An optimizer whose state and step are in the node's memory."""

    def __init__(
        self,
        params: Sequence[nn.Parameter],
        make: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        """Take the parameters, and a function that makes an optimizer of their
        copies.
        """
        self.params = list(params)
        self.hosts = [
            nn.Parameter(param.detach().to("cpu", copy=True)) for param in self.params
        ]
        self.inner = make(self.hosts)

    @property
    def state(self) -> dict[Any, Any]:
        """Return the saved state of each copy."""
        return self.inner.state

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights again after another part of the program changed them."""
        for param, host in zip(self.params, self.hosts, strict=True):
            host.copy_(param)

    def zero_grad(self) -> None:
        """Clear all gradients."""
        for param in self.params:
            param.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Copy the gradients, take the step, copy the weights back."""
        for param, host in zip(self.params, self.hosts, strict=True):
            host.grad = None if param.grad is None else param.grad.to("cpu")
        self.inner.step()
        for param, host in zip(self.params, self.hosts, strict=True):
            param.copy_(host)
            host.grad = None


def prime(optimizer: torch.optim.Optimizer) -> None:
    """Have an optimizer create its state without changing a weight.

    As torch.distributed.checkpoint.state_dict does: a step at rate 0.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for param in group["params"]:
            param.grad = torch.zeros_like(param)
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
        for param in group["params"]:
            param.grad = None
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.zero_()


def onto_drive(optimizer: torch.optim.Optimizer, folder: Path) -> int:
    """Move all state of an optimizer into mapped files. Return their bytes.

    Args:
        optimizer: of parameters in the node's memory, whole or sharded.
        folder: of this rank alone.

    Raises:
        OSError: too little space, or the folder cannot be made.
    """
    prime(optimizer)
    folder.mkdir(parents=True, exist_ok=True)
    done = 0
    for number, state in enumerate(optimizer.state.values()):
        for key, value in state.items():
            # The count of steps is one number, and some optimizers need it in memory.
            if isinstance(value, torch.Tensor) and value.numel() > 1:
                state[key] = _mapped(value, folder / f"{number}.{key}")
                done += value.numel() * value.element_size()
    return done


def _mapped(value: torch.Tensor, file: Path) -> torch.Tensor:
    if isinstance(value, DTensor):
        inner = _mapped(value.to_local(), file)
        whole: torch.Tensor = DTensor.from_local(
            inner,
            value.device_mesh,
            value.placements,
            run_check=False,
            shape=value.shape,
            stride=value.stride(),
        )
        return whole
    made = torch.from_file(
        str(file), shared=True, size=math.prod(value.shape), dtype=value.dtype
    ).view(value.shape)
    made.copy_(value)
    return made

"""Let autograd add up gradients in place, also under a dispatch mode.

If a tensor was used twice, the engine adds the second gradient into the first one
unless other owners hold that (torch/csrc/autograd/input_buffer.cpp, ``accumulate``).
While a dispatch mode is active it makes a new tensor instead, and would seem to need
more memory. This module returns the first gradient's own storage for such an addition.
"""

from typing import Any

import torch

from placement.planner.symbolic.dispatch_mode import StepMode

Args = tuple[Any, ...]


class Summing:
    """The special function of ``add`` in one StepMode."""

    def __init__(self, mode: StepMode) -> None:
        self.mode = mode
        self._alone: tuple[int, int] | None = None
        """Number of owners that a gradient and its storage have here when only the
        engine holds it: itself, and the caller's references.
        """
        mode.special["aten::add"] = self.add

    def learn(self) -> None:
        """Count those owners on a gradient that surely has no others."""
        with self.mode:
            start = torch.empty(64, 64, requires_grad=True)
            middle = start * 2
            (middle.sin() + middle.cos()).sum().backward()
        assert self._alone is not None

    def add(self, func: Any, args: Args, named: dict[str, Any]) -> Any:
        """Return a sum of two gradients. Every other addition is an ordinary one."""
        first = args[0]
        if (
            named
            or torch.is_grad_enabled()
            or not isinstance(first, torch.Tensor)
            or not isinstance(args[1], torch.Tensor)
            or first.shape != args[1].shape
            or torch._C._current_autograd_node() is None
        ):
            return self.mode.ordinary(func, args, named)
        owners = (first._use_count(), owners_of_storage(first))  # type: ignore[attr-defined]
        if self._alone is None:
            self._alone = owners
        if owners > self._alone or not dense(first):
            return self.mode.ordinary(func, args, named)
        return torch.ops.aten.alias.default(first)


def owners_of_storage(tensor: torch.Tensor) -> int:
    """Return how many tensors and handles share a tensor's storage."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def dense(tensor: torch.Tensor) -> bool:
    """Return whether every element has exactly one place in a block without gaps."""
    expected = 1
    pairs = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    for step, size in pairs:
        if size == 1:
            continue
        if step != expected:
            return False
        expected *= size
    return True

"""Track storages: the bytes alive, and their peak in each phase.

A storage counts from the first operator that returns it until its last owner lets
it go, views and autograd's saved tensors included, as in an allocator without slack.
"""

import weakref
from collections.abc import Iterable

import torch

PHASES = ("fwd", "bwd", "opt", "zero")
"""Forward, backward, optimizer.step, zero_grad."""


class Tracker:
    """Live bytes and, per phase, the peak. Not for several threads."""

    def __init__(self, granularity_bytes: int = 1) -> None:
        self.granularity_bytes = granularity_bytes
        """Every block is rounded up to a multiple of this by the allocator."""
        self.live_bytes = 0
        self.peak_bytes = 0
        self.flops = 0
        """Operations of matrix products, convolutions and attention so far."""
        self.phase = "build"
        self.phase_peak_bytes: dict[str, int] = {}
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def enter(self, phase: str) -> None:
        """Begin a phase. Storages alive at its start count towards its peak."""
        self.note()
        self.phase = phase
        self.peak_bytes = max(self.phase_peak_bytes.get(phase, 0), self.live_bytes)

    def note(self) -> None:
        """Keep the peak of the phase that runs."""
        old = self.phase_peak_bytes.get(self.phase, 0)
        self.phase_peak_bytes[self.phase] = max(old, self.peak_bytes)

    def forget_peaks(self) -> None:
        """Reset the peaks. Storages stay alive."""
        self.phase_peak_bytes = {}
        self.peak_bytes = self.live_bytes

    def count_storage(self, tensor: torch.Tensor) -> None:
        """Count a tensor's storage, if it was not seen before."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()
        if self.granularity_bytes > 1:
            size = -(-size // self.granularity_bytes) * self.granularity_bytes
        self.live_bytes += size
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes = self.live_bytes

        def gone(_: object, key: int = key, size: int = size) -> None:
            del self._known[key]
            self.live_bytes -= size

        self._known[key] = weakref.ref(storage, gone)

    def moment(self, size_bytes: int) -> None:
        """Count memory that an operator takes and gives back before it returns."""
        self.peak_bytes = max(self.peak_bytes, self.live_bytes + size_bytes)


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the storages behind some tensors, each counted once."""
    seen: dict[int, int] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        seen[storage._cdata] = storage.nbytes()
    return sum(seen.values())

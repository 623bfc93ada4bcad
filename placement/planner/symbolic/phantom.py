"""Tensors with sizes, strides and storages, but without memory.

A phantom is an ordinary CPU tensor. Its storage has a size, but points at one read-only
region of zeros that all phantoms share. So code that depends on devices, types and
shapes (autocast, the choice of the attention kernel, autograd, optimizers) behaves as
on real CPU tensors, while 8 billion parameters take no memory.
``dispatch_mode.StepMode`` must handle every operator, because a kernel that wrote to a
phantom would end the process.
"""

import math
import mmap
import weakref
from collections.abc import Sequence

import numpy as np
import torch

REGION_BYTES = 64 * 2**20
"""Readable zeros behind every phantom, for code that reads without an operator."""
_CPU = torch.device("cpu")
_region = mmap.mmap(
    -1, REGION_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ
)
_START = int(np.frombuffer(_region, dtype=np.uint8).ctypes.data)
_unknown: dict[int, weakref.ref[torch.UntypedStorage]] = {}
"""Storages with memory into which unknown values were written."""


def make(
    shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """Return a phantom. Its storage is as large as a CPU tensor's of this layout."""
    # Without a dispatch mode: the caller is the mode, or has disabled it.
    reach = 1
    for size, step in zip(shape, stride, strict=True):
        if size == 0:
            reach = 0
            break
        reach += (size - 1) * step
    storage = torch._C._construct_storage_from_data_pointer(
        _START, _CPU, reach * dtype.itemsize
    )
    tensor = torch.empty(0, dtype=dtype)
    tensor.set_(storage, 0, tuple(shape), tuple(stride))
    return tensor


def dense(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a contiguous phantom."""
    stride = [1] * len(shape)
    for place in range(len(shape) - 2, -1, -1):
        stride[place] = stride[place + 1] * max(1, shape[place + 1])
    return make(shape, stride, dtype)


def is_phantom(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's values are unknown: no memory, or unknown values
    written to it.
    """
    storage = tensor.untyped_storage()
    return storage.data_ptr() == _START or storage._cdata in _unknown


def forget(tensor: torch.Tensor) -> None:
    """Note that a real tensor's values are not known any more."""
    storage = tensor.untyped_storage()
    key = storage._cdata

    def gone(_: object) -> None:
        del _unknown[key]

    _unknown[key] = weakref.ref(storage, gone)


def numel(shape: Sequence[int]) -> int:
    """Return the elements of a shape."""
    return math.prod(shape)

"""Differences of CUDA from the CPU, substituted before operators are split up.

Phantoms are CPU tensors, so torch selects the CPU's kernels for them. For a Gpu this
module substitutes, at the level of torch.nn.functional: the fused attention kernels
(they keep q, k, v, the output and one number per row), dropout with a mask of one byte
per element, and the operators that autocast runs in fp32 on CUDA alone
(torch/docs/source/amp.md, "CUDA Ops that can autocast to float32").
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from placement.planner.symbolic.storage_tracker import Tracker

MOST_FLASH_HEAD = 256
"""Largest head of the flash kernel. Larger ones use the memory-efficient kernel."""
ROW_BLOCK = 128
"""Rows of a block of the flash kernel's backward."""
HEAD_BLOCK = 32
FP32_FUNCTIONS: frozenset[Any] = frozenset(
    {
        *(functional.layer_norm, functional.group_norm, functional.rms_norm),
        *(functional.cosine_similarity, functional.softplus, functional.mse_loss),
        *(functional.cross_entropy, functional.nll_loss, functional.l1_loss),
        *(functional.kl_div, functional.smooth_l1_loss, functional.interpolate),
        *(functional.binary_cross_entropy_with_logits, functional.embedding_bag),
        *(torch.exp, torch.log, torch.log1p, torch.log2, torch.log10, torch.expm1),
        *(torch.pow, torch.rsqrt, torch.reciprocal, torch.norm, torch.cdist),
        *(torch.cumsum, torch.cumprod, torch.prod, torch.sum, torch.logsumexp),
        *(Tensor.exp, Tensor.log, Tensor.pow, Tensor.rsqrt, Tensor.reciprocal),
        *(Tensor.__pow__, Tensor.__rpow__, Tensor.cumsum, Tensor.cumprod),
        *(Tensor.prod, Tensor.sum, Tensor.norm, Tensor.logsumexp, Tensor.log1p),
    }
)
SOFTMAX: frozenset[Any] = frozenset(
    {
        *(functional.softmax, functional.log_softmax, torch.softmax),
        *(torch.log_softmax, Tensor.softmax, Tensor.log_softmax),
    }
)
DROPOUT: frozenset[Any] = frozenset({functional.dropout, torch.dropout})
_HALVES = (torch.float16, torch.bfloat16)


class CudaKernels(TorchFunctionMode):
    """Inside it, functions use and keep the same memory as on a Gpu."""

    def __init__(self, tracker: Tracker, attention: str) -> None:
        super().__init__()
        self.tracker = tracker
        self.attention = attention

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Return the result of one function."""
        named = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            return self._attention(*args, **named)
        if func in DROPOUT:
            return _drop(func, *args, **named)
        if torch.is_autocast_enabled("cpu"):
            if func in FP32_FUNCTIONS:
                return func(*_full(args), **named)
            if func in SOFTMAX and named.get("dtype") is None:
                return func(*_full(args), **named)
        return func(*args, **named)

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Return the result of one call of SDPA by the kernel that CUDA selects."""
        if torch.is_autocast_enabled("cpu"):
            kind = torch.get_autocast_dtype("cpu")
            query, key, value = (one.to(kind) for one in (query, key, value))
        flash = (
            self.attention != "efficient"
            and attn_mask is None
            and query.dtype in _HALVES
            and query.shape[-1] <= MOST_FLASH_HEAD
        )
        # Only the flash kernel takes grouped heads (pytorch issue 154363).
        grouped = enable_gqa and query.shape[-3] != key.shape[-3]
        if self.attention == "math" or (grouped and not flash):
            with sdpa_kernel(SDPBackend.MATH):
                return functional.scaled_dot_product_attention(
                    query,
                    key,
                    value,
                    attn_mask=attn_mask,
                    dropout_p=dropout_p,
                    is_causal=is_causal,
                    scale=scale,
                    enable_gqa=enable_gqa,
                )
        return FusedAttention.apply(query, key, value, self.tracker, flash)


@contextmanager
def on_a_gpu(tracker: Tracker, attention: str) -> Iterator[None]:
    """Yield with CudaKernels active, also for layers that are recomputed in backward.

    Autograd's engine runs without the modes of its caller, so a checkpoint's layer
    enters the mode again: its module is the first that is called there.
    """
    mode = CudaKernels(tracker, attention)
    entered: list[nn.Module] = []

    def before(module: nn.Module, _arguments: Any) -> None:
        if torch._C._len_torch_function_stack() == 0:
            mode.__enter__()
            entered.append(module)

    def after(module: nn.Module, _arguments: Any, _result: Any) -> None:
        if entered and entered[-1] is module:
            entered.pop()
            mode.__exit__(None, None, None)

    hooks = (
        register_module_forward_pre_hook(before),
        # Also after an exception, because checkpoints stop early by raising one.
        register_module_forward_hook(after, always_call=True),
    )
    try:
        with mode:
            yield
    finally:
        for hook in hooks:
            hook.remove()


class FusedAttention(torch.autograd.Function):
    """Attention that never stores its scores. Dao, arXiv:2307.08691."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, tracker: Any, flash: bool
    ) -> Tensor:
        """Return the output, in the order that the projections read; one fp32 number a
        row.
        """
        batch, heads, rows, depth = query.shape
        both = depth + value.shape[-1]
        tracker.flops += 2 * batch * heads * rows * key.shape[2] * both
        out = query.new_empty(batch, rows, heads, value.shape[-1]).transpose(1, 2)
        sums = query.new_empty(batch, heads, rows, dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.tracker, ctx.flash = tracker, flash
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return gradients of q, k and v. The flash kernel adds q's up in fp32."""
        query, key, value, _, sums = ctx.saved_tensors
        made = [_as_read(one) for one in (query, key, value)]
        rows = _up(query.shape[2], ROW_BLOCK)
        moment = 4 * sums.shape[0] * sums.shape[1] * rows
        if ctx.flash:
            moment *= 1 + _up(query.shape[3], HEAD_BLOCK)
            # Grouped heads: first the gradients of keys and values per query head.
            if key.shape[1] != query.shape[1]:
                moment += 2 * query.nbytes * key.shape[2] // query.shape[2]
        ctx.tracker.moment(moment)
        return (*made, None, None)


def _as_read(one: Tensor) -> Tensor:
    batch, heads, rows, width = one.shape
    return one.new_empty(batch, rows, heads, width).transpose(1, 2)


def _up(value: int, block: int) -> int:
    return math.ceil(value / block) * block


def _drop(func: Any, x: Tensor, *args: Any, **named: Any) -> Tensor:
    """Return CUDA's dropout: a fused kernel, and a mask of booleans."""
    names = (
        ("p", "training", "inplace") if func is functional.dropout else ("p", "train")
    )
    given = {"p": 0.5, "training": True, "train": True, "inplace": False}
    given |= dict(zip(names, args, strict=False)) | named
    if not (given["training"] and given["train"]) or not 0 < given["p"] < 1:
        return func(x, *args, **named)
    if given["inplace"]:
        return func(x, *args, **named)
    return torch.native_dropout(x, given["p"], True)[0]


def _full(args: tuple[Any, ...]) -> list[Any]:
    """Return arguments with 16-bit tensors cast to fp32."""
    return [
        one.float() if isinstance(one, Tensor) and one.dtype in _HALVES else one
        for one in args
    ]


def attention_context(accelerator: str, kernel: str) -> AbstractContextManager[Any]:
    """Return the context in which torch uses one kernel of SDPA."""
    if kernel == "math":
        return sdpa_kernel(SDPBackend.MATH)
    if kernel == "flash" and accelerator == "cpu":
        # The CPU's flash kernel has no dropout, so math is used instead, as in torch
        # itself.
        return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
    return nullcontext()

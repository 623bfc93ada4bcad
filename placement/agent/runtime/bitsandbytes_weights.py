"""Frozen weights in 4 or 8 bits, by bitsandbytes through transformers.

4 bits are nf4 whose blocks' constants are quantized too (QLoRA, arXiv:2305.14314). 8
bits are those of LLM.int8 (arXiv:2208.07339). transformers chooses the layers: all
linear ones but the head.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

from placement.planner.launch.execution import Execution

COMPUTE = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "autocast_bf16": torch.bfloat16,
    "autocast_fp16": torch.float16,
}
"""Precision -> the type in which weights of 4 bits are multiplied. The files of a Plan
have the same.
"""
WEIGHTS_IN_A_BYTE = 2


def quiet_bitsandbytes() -> None:
    """Switch off what bitsandbytes says about packages that it does not need."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


def quantization_of(how: Execution, transformers: Any) -> Any:
    """Return the ``BitsAndBytesConfig`` of an Execution with quantized weights."""
    quiet_bitsandbytes()
    if how.weights == "int8":
        return transformers.BitsAndBytesConfig(load_in_8bit=True)
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=COMPUTE[how.precision],
    )


def keep_packing(model: nn.Module) -> None:
    """Let weights of 4 bits keep their form on the CPU.

    With avx512_bf16 bitsandbytes 0.50 otherwise packs them again at the first
    evaluation. Their constants are then larger, and are no longer quantized.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]


def weight_count(param: nn.Parameter) -> int:
    """Return the weights in a parameter, also where two of them are in one byte."""
    packed = getattr(param, "quant_state", None) is not None
    count = param.numel() * param.element_size() if packed else param.numel()
    return WEIGHTS_IN_A_BYTE * count if packed else count


def constant_bytes(model: nn.Module) -> int:
    """Return the bytes of the quantized weights' constants, which are no parameters.

    4 bits: scales of the blocks, their scales, and two tables of values for each
    weight. 8 bits: a scale for each row.
    """
    total = 0
    for module in model.modules():
        weight = dict(module.named_parameters(recurse=False)).get("weight")
        state = getattr(weight, "quant_state", None)
        if state is not None:
            held = [state.absmax, state.code]
            if state.nested:
                held += [state.offset, state.state2.absmax, state.state2.code]
        elif type(weight).__name__ == "Int8Params":
            scales = getattr(module.state, "SCB", None)
            held = [weight.SCB if scales is None else scales]  # type: ignore[union-attr]
        else:
            continue
        total += sum(one.numel() * one.element_size() for one in held)
    return total

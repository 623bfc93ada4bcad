"""Low-rank adapters (LoRA, arXiv:2106.09685) of recipe ``fine-tune``, by PEFT.

Beside each chosen linear layer W the adapters A and B are trained, and the layer
returns ``W x + alpha / rank * B A x``. All weights of the model are frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from placement.agent.runtime.bitsandbytes_weights import quiet_bitsandbytes
from placement.planner.values.errors import LaunchInvalid

ALPHA_RATIO = 2
"""alpha / rank, unless alpha is set. The files of a Plan have the same."""
ALL_LINEAR = "all-linear"
"""PEFT's name of all linear layers but the head."""


def import_peft() -> Any:
    """Import PEFT without the warnings of libraries that it looks for."""
    quiet_bitsandbytes()
    import peft

    return peft


def with_adapters(model: nn.Module, settings: Mapping[str, Any]) -> nn.Module:
    """Freeze a model and put adapters on it. The seed decides their first weights.

    Raises:
        LaunchInvalid: the model has no such layers, or PEFT has no default for them.
    """
    peft = import_peft()
    rank, names = settings["lora_rank"], settings["lora_targets"].split()
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=settings["lora_alpha"] or ALPHA_RATIO * rank,
        lora_dropout=settings["lora_dropout"],
        target_modules=(ALL_LINEAR if names == [ALL_LINEAR] else names) or None,
    )
    torch.manual_seed(settings["seed"])
    try:
        made: nn.Module = peft.get_peft_model(model, config)
    except ValueError as error:
        why = " ".join(str(error).split())[:300]
        raise LaunchInvalid({"lora_targets": why}) from error
    return made


def save_adapters(
    model: Any, state: Mapping[str, torch.Tensor], folder: Path, base: str
) -> None:
    """Write the adapters in PEFT's format.

    Args:
        model: with adapters.
        state: their weights, whole, by name.
        folder: to write into.
        base: the model's folder or name, for those who load the adapters.
    """
    model.peft_config["default"].base_model_name_or_path = base
    # Otherwise PEFT asks the hub for the size of the vocabulary.
    model.save_pretrained(folder, state_dict=dict(state), save_embedding_layers=False)


def save_merged(base: nn.Module, adapters: Path, folder: Path) -> None:
    """Write the model with its adapters added to its weights, without PEFT.

    Args:
        base: the model without adapters, whole. Its weights are changed.
        adapters: the folder with the adapters.
        folder: to write into.
    """
    with_both: Any = import_peft().PeftModel.from_pretrained(base, adapters)
    with_both.merge_and_unload().save_pretrained(folder)

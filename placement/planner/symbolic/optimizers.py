"""Optimizers by name, as torch steps them on each accelerator."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from placement.planner.symbolic.case import Case

RATE = 1e-4
"""Learning rate; its value changes no size."""
BLOCK = 256
SMALLEST_8BIT = 4096
"""bitsandbytes keeps the state of smaller tensors in fp32 (optim/optimizer.py)."""


class Adam8bit(torch.optim.Optimizer):
    """Adam's two moments in 8 bits, a fp32 maximum per block of 256.

    Dettmers et al., arXiv:2110.02861; sizes as in bitsandbytes, whose kernel steps in
    place and takes nothing for itself.
    """

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        super().__init__(params, {"lr": RATE})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make the states where they are missing; write into the parameters."""
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is None:
                    continue
                state = self.state[one]
                if not state:
                    self._begin(one, state)
                one.add_(one.grad, alpha=-RATE)

    def _begin(self, one: torch.Tensor, state: dict[str, Any]) -> None:
        small = one.numel() < SMALLEST_8BIT
        kind = torch.float32 if small else torch.uint8
        for name in ("state1", "state2"):
            state[name] = torch.zeros(one.shape, dtype=kind)
            if not small:
                blocks = -(-one.numel() // BLOCK)
                state[f"{name}_maximum"] = torch.zeros(blocks, dtype=torch.float32)


def optimizer(case: Case, params: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of a case over its trained parameters."""
    loop = case.loop or ("foreach" if case.accelerator == "cuda" else "forloop")
    how: dict[str, Any] = {"foreach": loop == "foreach"}
    if loop == "fused":
        how = {"fused": True}
    if case.optimizer == "adam8bit":
        return Adam8bit(params)
    if case.optimizer == "adafactor_hf":
        from transformers.optimization import Adafactor

        return Adafactor(params, lr=RATE, relative_step=False, scale_parameter=False)
    if case.optimizer in ("sgd", "momentum"):
        ratio = case.momentum_ratio or (0.9 if case.optimizer == "momentum" else 0.0)
        return torch.optim.SGD(params, lr=RATE, momentum=ratio, **how)
    if case.optimizer in ("adam", "adamw", "adagrad"):
        made = {
            "adam": torch.optim.Adam,
            "adamw": torch.optim.AdamW,
            "adagrad": torch.optim.Adagrad,
        }[case.optimizer]
        return made(params, lr=RATE, **how)
    stepwise = {"foreach": how.get("foreach", False)}
    if case.optimizer == "rmsprop":
        return torch.optim.RMSprop(params, lr=RATE, **stepwise)
    # Adafactor is for-loop wherever nobody asks otherwise (torch/optim/_adafactor.py).
    return torch.optim.Adafactor(params, lr=RATE, foreach=case.loop == "foreach")

"""Optimizers by name, as torch steps them on each accelerator."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from placement.planner.symbolic.case import Case

RATE = 1e-4
"""Learning rate. Its value changes no size."""
BLOCK = 256
SMALLEST_8BIT = 4096
"""bitsandbytes keeps the state of smaller tensors in fp32 (optim/optimizer.py)."""


class EightBit(torch.optim.Optimizer):
    """One or two moments in 8 bits, with an fp32 maximum per block of 256.

    Dettmers et al., arXiv:2110.02861. Sizes as in bitsandbytes, whose kernel steps in
    place and needs no memory.
    """

    def __init__(self, params: Iterable[nn.Parameter], moments: int) -> None:
        super().__init__(params, {"lr": RATE})
        self.moments = moments

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make missing states, and write into the parameters."""
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
        for name in ("state1", "state2")[: self.moments]:
            state[name] = torch.zeros(one.shape, dtype=kind)
            if not small:
                blocks = -(-one.numel() // BLOCK)
                state[f"{name}_maximum"] = torch.zeros(blocks, dtype=torch.float32)


class Lion(torch.optim.Optimizer):
    """The sign of an interpolated momentum, tensor by tensor, as in its authors' code.

    Chen et al., arXiv:2302.06675, program 1.
    """

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        super().__init__(params, {"lr": RATE})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step every parameter that has a gradient."""
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is None:
                    continue
                state = self.state[one]
                if not state:
                    state["exp_avg"] = torch.zeros_like(one)
                mean = state["exp_avg"]
                update = mean.clone().mul_(0.9).add(one.grad, alpha=0.1).sign_()
                one.add_(update, alpha=-RATE)
                mean.mul_(0.99).add_(one.grad, alpha=0.01)


class MuonWithAdamW(torch.optim.Optimizer):
    """torch.optim.Muon for the matrices of hidden layers, AdamW for the rest."""

    def __init__(self, params: list[nn.Parameter], others: list[nn.Parameter]) -> None:
        super().__init__([*params, *others], {"lr": RATE})
        self.parts: list[torch.optim.Optimizer] = []
        if params:
            self.parts.append(torch.optim.Muon(params, lr=RATE))
        if others:
            self.parts.append(torch.optim.AdamW(others, lr=RATE))

    def foreach(self, wanted: bool) -> None:
        """Make AdamW step all tensors at once, or one after another."""
        for part in self.parts:
            for group in part.param_groups:
                group["foreach"] = wanted

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step both, and show their states as one."""
        for part in self.parts:
            part.step()
            self.state.update(part.state)


def _muon(model: nn.Module, params: list[nn.Parameter], how: dict[str, Any]) -> Any:
    """Return Muon as its authors use it: no tables and no head.

    Source: github.com/KellerJordan/Muon, README.
    """
    outer = {
        id(one)
        for name, one in model.named_parameters()
        if any(word in name for word in ("embed", "wte", "wpe", "lm_head", "shared."))
    }
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    outer |= {id(one) for table in tables for one in table.parameters()}
    hidden = [one for one in params if one.dim() == 2 and id(one) not in outer]
    chosen = {id(one) for one in hidden}
    made = MuonWithAdamW(hidden, [one for one in params if id(one) not in chosen])
    made.foreach(bool(how.get("foreach")))
    return made


EIGHT_BIT = {"adam8bit": 2, "adamw8bit": 2, "lion8bit": 1, "rmsprop8bit": 1}
"""Moments of the optimizers of bitsandbytes."""


def optimizer(
    model: nn.Module, case: Case, params: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """Return the optimizer of a case over its trained parameters."""
    loop = case.loop or ("foreach" if case.accelerator == "cuda" else "forloop")
    how: dict[str, Any] = {"foreach": loop == "foreach"}
    if loop == "fused":
        how = {"fused": True}
    if case.optimizer in EIGHT_BIT:
        return EightBit(params, EIGHT_BIT[case.optimizer])
    if case.optimizer == "lion":
        return Lion(params)
    if case.optimizer == "muon":
        return _muon(model, params, how)  # type: ignore[no-any-return]
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
    # Adafactor uses the for-loop unless another one is requested
    # (torch/optim/_adafactor.py).
    return torch.optim.Adafactor(params, lr=RATE, foreach=case.loop == "foreach")

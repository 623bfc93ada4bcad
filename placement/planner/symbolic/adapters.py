"""Low-rank adapters on frozen models, and frozen parameters.

PEFT 0.21 computes them as follows (peft/tuners/lora/layer.py): the frozen layer's
output plus B(A(dropout(x))) x alpha / rank, with a gradient only for A and B.
"""

from typing import Any

from torch import Tensor, nn

from placement.planner.symbolic.case import Adapter
from placement.planner.values.errors import SpecInvalid

SCALE = 2.0
"""alpha / rank. Its value changes no size."""


class LowRank(nn.Module):
    """A layer with an adapter beside it."""

    def __init__(self, base: nn.Module, adapter: Adapter) -> None:
        super().__init__()
        inner, outer = sizes(base)
        weight: Any = base.weight
        self.base = base
        self.dropout = (
            nn.Dropout(adapter.dropout_ratio)
            if adapter.dropout_ratio
            else nn.Identity()
        )
        kind = {"dtype": weight.dtype}
        self.lora_a = nn.Linear(inner, adapter.rank, bias=False, **kind)
        self.lora_b = nn.Linear(adapter.rank, outer, bias=False, **kind)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's result plus the adapter's."""
        result = self.base(x)
        return result + self.lora_b(self.lora_a(self.dropout(x))) * SCALE


def sizes(layer: nn.Module) -> tuple[int, int]:
    """Return inputs and outputs of a linear layer, torch's or GPT-2's Conv1D."""
    weight: Any = layer.weight
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return weight.shape[0], weight.shape[1]


def adapt(model: nn.Module, adapter: Adapter) -> None:
    """Freeze a model and put adapters on its named layers.

    Raises:
        SpecInvalid: no layer has one of the names.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    found = [
        (name, module)
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in adapter.targets
        and (isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D")
    ]
    if not found:
        names = ", ".join(adapter.targets)
        raise SpecInvalid({"lora.targets": f"no linear layer is called {names}"})
    for name, module in found:
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, LowRank(module, adapter))


def freeze(model: nn.Module, names: tuple[str, ...]) -> None:
    """Disable the gradient of parameters whose name contains one of these.

    Raises:
        SpecInvalid: a name that no parameter has.
    """
    unused = set(names)
    for name, parameter in model.named_parameters():
        held = {one for one in names if one in name}
        if held:
            parameter.requires_grad_(False)
            unused -= held
    if unused:
        raise SpecInvalid({"freeze": f"no parameter's name has {sorted(unused)[0]}"})

"""The trained parameters of one layer, and its products with an adapter.

At every product a tape reads from `Weights` whether these weights are frozen and
whether they have a low-rank adapter. Names are matched by component and size, in order.
"""

from dataclasses import dataclass, field

from placement.planner.model.block_shape import TransformerShape
from placement.planner.model.spec import LayerSpec, Linear


@dataclass(slots=True)
class Weights:
    """One layer's parameters in the form that the tape needs."""

    frozen: frozenset[str] = frozenset()
    """Components whose parameters have no gradient."""
    quantized: frozenset[str] = frozenset()
    """Components whose products first dequantize their weights, in both passes."""
    pending: dict[str, list[Linear]] = field(default_factory=dict)
    """Named products that were not matched yet, by component."""
    targets: frozenset[str] = frozenset()
    rank: int = 0

    def rank_beside(self, component: str, inputs: int, outputs: int) -> int:
        """Return the rank of the adapter beside the next product of these sizes; 0 for
        none.
        """
        for index, one in enumerate(self.pending.get(component, [])):
            if one.outputs % outputs == 0 and one.inputs % inputs == 0:
                del self.pending[component][index]
                return self.rank if one.name in self.targets else 0
        return 0


def weights_of(
    layer: LayerSpec, shape: TransformerShape | None, *, owner: LayerSpec | None = None
) -> Weights:
    """Return the Weights of one layer. `owner`: of a table that it may be tied to."""
    own = [one for one in layer.parts if one.component != "adapter"]
    learns = {one.component for one in own if not one.frozen}
    frozen = frozenset(one.component for one in own) - learns
    if layer.tied_parameters and owner is not None and all_frozen(owner):
        frozen |= {"embedding"}
    packed = frozenset(one.component for one in own if one.weight_bits is not None)
    if shape is None or not shape.lora_rank:
        return Weights(frozen, packed)
    pending: dict[str, list[Linear]] = {}
    for one in own:
        pending.setdefault(one.component, []).extend(one.linears)
    return Weights(
        frozen, packed, pending, frozenset(shape.lora_targets), shape.lora_rank
    )


def all_frozen(layer: LayerSpec) -> bool:
    """Return whether nothing of the layer is trained."""
    return bool(layer.parts) and all(one.frozen for one in layer.parts)

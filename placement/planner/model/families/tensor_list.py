"""Lists of a family's tensors, for models whose arithmetic is unknown here.

The states are exact. The activations and operations are guessed from the sizes of the
matrices, and from the tokens that each of them multiplies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from placement.planner.model.config_reader import ConfigFields
from placement.planner.model.files.tensor_inventory import (
    TensorInfo,
    spec_from_inventory,
)
from placement.planner.model.spec import DTYPE_BYTES, ModelSpec
from telemetry.protocol.sentences import sentence

DTYPE_OF_WIDTH: Mapping[float, str] = {
    DTYPE_BYTES[name]: name for name in ("fp64", "fp32", "bf16")
}
MAX_LIST = 64


class TensorList:
    """Tensors in the order in which a model runs them."""

    def __init__(self, width: float, *, sample_tokens: int = 0) -> None:
        """Begin without tensors.

        Args:
            width: stored bytes per element.
            sample_tokens: tokens of one sample. 0: those of the Workload's sequence.
        """
        self.dtype = DTYPE_OF_WIDTH.get(width, "fp32")
        self.sample_tokens = sample_tokens
        self.tensors: list[TensorInfo] = []
        self.multiplied = 0.0
        """Elements of the products, each times its part of the sample's tokens."""

    def add(self, name: str, *shape: int, kept: int = 0) -> None:
        """Add a vector, or a matrix that is no product.

        `kept`: numbers that its operator keeps for each token.
        """
        self.tensors.append(TensorInfo(name, shape, self.dtype, edges=kept))

    def linear(
        self, name: str, outputs: int, inputs: int, *, bias: bool, tokens: float = 0.0
    ) -> None:
        """Add a product. `tokens`: of a sample that it multiplies; 0: all."""
        self._product(name, (outputs, inputs), tokens, product=(outputs, inputs))
        if bias:
            self.add(f"{name}.bias", outputs)

    def convolution(
        self, name: str, outputs: int, inputs: int, *kernel: int, tokens: float
    ) -> None:
        """Add a convolution with a bias, applied at so many positions of a sample."""
        self._product(name, (outputs, inputs, *kernel), tokens)
        self.add(f"{name}.bias", outputs)

    def norm(self, name: str, size: int, tokens: float) -> None:
        """Add the weight and the bias of a norm of so many tokens of a sample."""
        self.add(f"{name}.weight", size, kept=round(size * self._ratio(tokens)))
        self.add(f"{name}.bias", size)

    def _ratio(self, tokens: float) -> float:
        """Return so many tokens as a part of the sample's."""
        return tokens / self.sample_tokens if tokens and self.sample_tokens else 1.0

    def _product(
        self,
        name: str,
        shape: tuple[int, ...],
        tokens: float,
        product: tuple[int, int] | None = None,
    ) -> None:
        ratio = self._ratio(tokens)
        made = TensorInfo(
            f"{name}.weight",
            shape,
            self.dtype,
            product=product,
            edges=round(ratio * (shape[0] + shape[1])),
        )
        self.tensors.append(made)
        self.multiplied += ratio * made.elements

    def spec(
        self,
        family: str,
        notes: tuple[str, ...] = (),
        *,
        name: str = "",
        tied_groups: Sequence[Sequence[str]] = (),
    ) -> ModelSpec:
        """Return the ModelSpec. Raises SpecInvalid."""
        found = spec_from_inventory(
            self.tensors,
            name=name or family,
            source="config.json",
            family=family,
            notes=notes,
            tied_groups=tied_groups,
            in_given_order=True,
            sample_tokens=self.sample_tokens,
        )
        matrices = sum(
            part.matrix_parameters
            for layer in found.layers
            if layer.kind != "embedding"
            for part in layer.parts
        )
        if not self.sample_tokens or not self.multiplied or not matrices:
            return found
        return replace(found, flops_ratio=self.multiplied / matrices)


def sizes(
    fields: ConfigFields, name: str, *, default: tuple[int, ...], high: int = 2**18
) -> tuple[int, ...]:
    """Return a list of whole numbers from 1 up. Notes a problem for anything else."""
    given = fields.peek(name)
    if given is None:
        return default
    good = (
        isinstance(given, list)
        and 0 < len(given) <= MAX_LIST
        and all(type(one) is int and 1 <= one <= high for one in given)
    )
    fields.require(
        name,
        good,
        sentence(
            "must be a list of whole numbers from 1 to {high}, at most {count}",
            high=f"{high:,}",
            count=MAX_LIST,
        ),
    )
    return tuple(given) if good else default

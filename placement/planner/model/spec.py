"""The description of a model: a ModelSpec, exact to the byte, without its weights.

A ModelSpec is layers in order (embedding, blocks, head). Each layer has a few
LayerParts: parameters of one component, counted once per storage, so tied tensors are
not counted twice. If the family is known, `shape` describes how a block computes.
Without it (safetensors, ONNX) states stay exact, and activations are a guess with a
note.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, Self

from placement.planner.model.block_shape import (
    TransformerShape,
    shape_problems,
)
from placement.planner.values.errors import SpecInvalid
from placement.planner.values.json_value import JsonValue
from telemetry.protocol.sentences import sentence

Component = Literal[
    "embedding", "attention", "mlp", "router", "norm", "head", "adapter", "other"
]
COMPONENTS: tuple[Component, ...] = (
    "embedding",
    "attention",
    "mlp",
    "router",
    "norm",
    "head",
    "adapter",
    "other",
)
LayerKind = Literal["embedding", "block", "encoder", "decoder", "head", "other"]
LAYER_KINDS = ("embedding", "block", "encoder", "decoder", "head", "other")
HEADS = (
    "causal_lm",
    "masked_lm",
    "seq2seq_lm",
    "sequence_classification",
    "image_classification",
    "none",
)
DTYPE_BYTES: dict[str, float] = {
    "fp64": 8,
    "fp32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "fp6": 0.75,
    "fp4": 0.5,
    "complex64": 8,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "bool": 1,
    "int4": 0.5,
    "int2": 0.25,
    "complex128": 16,
}

MAX_LAYERS = 4096
MOST_RATIO = 1e6
MAX_PARAMETERS = 10**14
"""100 trillion. No model is larger, so a larger number is a typing mistake."""


class Linear(NamedTuple):
    """Equal products inside one LayerPart, to which adapters and quantization apply."""

    name: str
    """The family's name: q_proj, c_attn, fc1."""
    outputs: int
    inputs: int
    copies: int = 1


@dataclass(frozen=True, slots=True)
class LayerPart:
    """Parameters of one component inside one layer, by storage and not by name."""

    component: Component
    parameters: int
    tensors: int
    largest: int
    """Elements of the largest tensor."""
    edges: int
    """Sum of rows + columns of matrices and lengths of vectors. Adafactor keeps this
    many numbers, and the guess for unknown layers uses it too.
    """
    matrix_parameters: int
    """Elements in tensors of two or more dimensions, which autocast copies to 16 bits
    and tensor parallelism divides.
    """
    stored_bytes: int
    """Bytes as stored in the source (its own dtypes, constants of quantized blocks
    included).
    """
    frozen: bool = False
    """No gradient and no optimizer state."""
    weight_bits: float | None = None
    """Quantized weights: approximate bits of each, constants included (8 rowwise, 4.127
    in nf4 with quantized constants). `stored_bytes` is exact and is the size of the
    weights on the Gpu, regardless of the Workload's precision. None: not quantized.
    """
    linears: tuple[Linear, ...] = ()
    """The products among its tensors, if the source has them."""
    routed_parameters: int = 0
    """Without a shape: elements of the experts among which a router selects."""
    routed_edges: int = 0
    """The part of `edges` that belongs to these experts."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer that is never cut: an embedding, a block, the head."""

    name: str
    kind: LayerKind
    parts: tuple[LayerPart, ...]
    tied_parameters: int = 0
    """Elements that this layer uses but shares with another layer's storage. On another
    Gpu than their owner's they exist a second time.
    """

    @property
    def parameters(self) -> int:
        """Return the elements owned by this layer."""
        return sum(part.parameters for part in self.parts)

    @property
    def tensors(self) -> int:
        """Return the parameter tensors owned by this layer."""
        return sum(part.tensors for part in self.parts)

    @property
    def largest(self) -> int:
        """Return the elements of the largest tensor used here, tied ones included."""
        own = max((part.largest for part in self.parts), default=0)
        return max(own, self.tied_parameters)

    def component_parameters(self, component: str) -> int:
        """Return the elements of one component in this layer."""
        return sum(p.parameters for p in self.parts if p.component == component)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(JsonValue):
    """A model: family, layers in order, and, if known, how a block computes."""

    family: str
    name: str
    head: str
    layers: tuple[LayerSpec, ...]
    shape: TransformerShape | None
    dtype: str
    """How the source stores the weights. The Workload determines how they are run."""
    source: str
    """Origin of the description: config.json, safetensors, onnx, well-known."""
    tied_groups: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    """Assumptions, omissions and unknown parts, in plain words."""
    routed_ratio: float = 1.0
    """Without a shape: part of the stacked experts that one token uses."""
    activation_ratio: float = 1.0
    """Without a shape: factor of the guessed activations, if the model's own code was
    followed.
    """
    flops_ratio: float = 1.0
    """Without a shape: factor of the operations that are guessed from the sizes of the
    matrices, if the model's own code was followed.
    """
    sample_tokens: int = 0
    """Without a shape: tokens of one sample, such as the positions of an image. 0:
    those of the Workload's sequence.
    """
    batch_norms: int = 0
    """Layers whose statistics depend on their batch."""
    quantized_as: str = ""
    """int8 or nf4: its weights, which the source has in full, are quantized in this
    form when they are loaded. Empty: they are loaded in the source's form.
    """

    @property
    def reads_in_chunks(self) -> bool:
        """Return whether the model can read a prompt piece by piece.

        A decoder with a cache can. The scan of a Mamba mixer starts with an empty state
        in transformers, so it reads whole prompts.
        """
        shape = self.shape
        return (
            self.head == "causal_lm"
            and shape is not None
            and shape.attention == "causal"
            and not shape.state_dim
        )

    @property
    def trainable_count(self) -> int:
        """Return the elements that get a gradient, tied storages once."""
        return sum(
            part.parameters
            for layer in self.layers
            for part in layer.parts
            if not part.frozen
        )

    @property
    def is_quantized(self) -> bool:
        """Return whether some weights are kept in fewer bits than they compute in."""
        return any(
            part.weight_bits is not None
            for layer in self.layers
            for part in layer.parts
        )

    @property
    def parameter_count(self) -> int:
        """Return the elements, tied storages once."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def block_count(self) -> int:
        """Return the blocks, which papers count as the layers of a model."""
        return sum(layer.kind not in ("embedding", "head") for layer in self.layers)

    @property
    def tensor_count(self) -> int:
        """Return the parameter tensors, tied storages once."""
        return sum(layer.tensors for layer in self.layers)

    @property
    def stored_bytes(self) -> int:
        """Return the bytes of the weights as the source stores them."""
        return sum(part.stored_bytes for layer in self.layers for part in layer.parts)

    @property
    def activations_are_a_guess(self) -> bool:
        """Return whether the activations are a guess.

        They are if the layers' arithmetic is unknown, as in a bare tensor list, and the
        model's own code was not followed.
        """
        return self.shape is None and self.activation_ratio == 1.0

    def component_parameters(self) -> dict[str, int]:
        """Return the elements by component, in the order of COMPONENTS, zeros left
        out.
        """
        sums = {
            component: sum(
                layer.component_parameters(component) for layer in self.layers
            )
            for component in COMPONENTS
        }
        return {component: count for component, count in sums.items() if count}

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict that `from_json` reads back. Most defaults are left
        out.
        """
        data = JsonValue.to_json(self)
        for layer in data["layers"]:
            layer["parts"] = [
                without_defaults(LayerPart, one) for one in layer["parts"]
            ]
        if self.shape is not None:
            data["shape"] = without_defaults(TransformerShape, data["shape"])
        if not self.notes:
            del data["notes"]
        for name in ("batch_norms", "sample_tokens"):
            if not data[name]:
                del data[name]
        if not self.quantized_as:
            del data["quantized_as"]
        for name in ("routed_ratio", "activation_ratio", "flops_ratio"):
            if data[name] == 1.0:
                del data[name]
        return data | {"version": 1, "parameter_count": self.parameter_count}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read the result of `to_json`. Raises SpecInvalid for anything else."""
        if not isinstance(data, Mapping) or data.get("version") != 1:
            raise SpecInvalid({"version": sentence("only version 1 can be read")})
        spec = super(ModelSpec, cls).from_json(data)
        check(spec)
        return replace(spec, notes=tuple(note[:400] for note in spec.notes))


def without_defaults(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a value that differ from its kind's defaults."""
    defaults = {field.name: field.default for field in fields(kind)}
    return {name: one for name, one in data.items() if one != defaults[name]}


def check(spec: ModelSpec) -> None:
    """Raise SpecInvalid unless a ModelSpec of any origin is consistent."""
    problems: dict[str, str] = {}
    if not spec.layers:
        problems["layers"] = sentence("there are none")
    if len(spec.layers) > MAX_LAYERS:
        problems["layers"] = sentence(
            "{layers} layers; at most {max_layers}",
            layers=len(spec.layers),
            max_layers=MAX_LAYERS,
        )
    if spec.dtype not in DTYPE_BYTES:
        problems["dtype"] = sentence(
            "'{dtype}' is not one of {dtype2}",
            dtype=spec.dtype[:40],
            dtype2=", ".join(DTYPE_BYTES),
        )
    if not 0 < spec.routed_ratio <= 1:  # NaN too
        problems["routed_ratio"] = sentence("must be above 0 and at most 1")
    for name in ("activation_ratio", "flops_ratio"):
        if not 0 < getattr(spec, name) <= MOST_RATIO:
            problems[name] = sentence("must be above 0")
    for name in ("batch_norms", "sample_tokens"):
        if not _is_count(getattr(spec, name)):
            problems[name] = sentence("must be a whole number from 0 up")
    if spec.head not in HEADS:
        problems["head"] = sentence(
            "'{head}' is not one of {heads}",
            head=spec.head[:40],
            heads=", ".join(HEADS),
        )
    for layer in spec.layers:
        if (
            layer.kind not in LAYER_KINDS
            or not _is_count(layer.tied_parameters)
            or not all(_part_holds(part) for part in layer.parts)
        ):
            problems["layers"] = sentence(
                "'{layer}' has a wrong kind or number", layer=layer.name[:80]
            )
    if not problems and not 0 < spec.parameter_count <= MAX_PARAMETERS:
        problems["parameter_count"] = sentence(
            "{parameter_count} parameters; between 1 and {max_parameters}",
            parameter_count=f"{spec.parameter_count:,}",
            max_parameters=f"{MAX_PARAMETERS:,}",
        )
    if spec.shape is not None:
        problems |= shape_problems(spec.shape)
    if problems:
        raise SpecInvalid(problems)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _part_holds(part: LayerPart) -> bool:
    """Return whether a LayerPart's numbers are possible, regardless of their origin."""
    bits = part.weight_bits
    return (
        part.component in COMPONENTS
        and all(_is_count(getattr(part, name)) for name in _PART_COUNTS)
        and type(part.frozen) is bool
        and (bits is None or (type(bits) in (int, float) and 0 < bits <= 64))
        and all(
            type(one.name) is str
            and len(one.name) <= 200
            and all(_is_count(number) for number in one[1:])
            for one in part.linears
        )
    )


def part(
    component: Component,
    shapes: Sequence[Sequence[int]],
    *,
    element_bytes: float = 4,
    linears: Sequence[Linear] = (),
    frozen: bool = False,
) -> LayerPart:
    """Return one LayerPart from its tensors' shapes.

    >>> part("mlp", [(4, 3), (4,)]).parameters
    16
    """
    sizes = [_product(shape) for shape in shapes]
    total = sum(sizes)
    return LayerPart(
        component=component,
        parameters=total,
        tensors=len(shapes),
        largest=max(sizes, default=0),
        edges=sum(
            _edges(shape, size) for shape, size in zip(shapes, sizes, strict=True)
        ),
        matrix_parameters=sum(
            size for shape, size in zip(shapes, sizes, strict=True) if len(shape) > 1
        ),
        stored_bytes=int(total * element_bytes),
        frozen=frozen,
        linears=tuple(linears),
    )


def _product(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _edges(shape: Sequence[int], size: int) -> int:
    """Return the numbers of a factored second moment: rows and columns of the last two
    axes.
    """
    if len(shape) < 2 or not size:
        return size
    return size // shape[-1] + size // shape[-2]


_PART_COUNTS = (
    "parameters",
    "tensors",
    "largest",
    "edges",
    "matrix_parameters",
    "stored_bytes",
    "routed_parameters",
    "routed_edges",
)

"""What a model is made of: a ModelSpec, exact to the byte, without its weights.

A ModelSpec is layers in order (embedding, blocks, head). Each layer is a few Parts:
parameters of one component, counted once per storage, so tied tensors are not counted
twice. Where the family is known, `shape` says how a block computes; without it
(safetensors, ONNX) states stay exact and activations are a guess that says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from placement.domain.errors import SpecInvalid

Component = Literal["embedding", "attention", "mlp", "router", "norm", "head", "other"]
COMPONENTS: tuple[Component, ...] = (
    "embedding",
    "attention",
    "mlp",
    "router",
    "norm",
    "head",
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
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "bool": 1,
    "int4": 0.5,
}

MAX_LAYERS = 4096
MAX_PARAMETERS = 10**14
"""100 trillion: no model is larger, so a larger number is a typing mistake."""


@dataclass(frozen=True, slots=True)
class Part:
    """Parameters of one component inside one layer; storages, not names."""

    component: Component
    parameters: int
    tensors: int
    largest: int
    """Elements of the largest tensor."""
    edges: int
    """Sum of rows + columns of matrices and lengths of vectors. Adafactor keeps this
    many numbers; the guess for unknown layers uses it too."""
    matrix_parameters: int
    """Elements in tensors of two or more dimensions: what autocast copies to 16 bits
    and tensor parallelism divides."""
    stored_bytes: int
    """Bytes as stored in the source (its own dtypes)."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer that is never cut: an embedding, a block, the head."""

    name: str
    kind: LayerKind
    parts: tuple[Part, ...]
    tied_parameters: int = 0
    """Elements this layer uses but shares with another layer's storage. On another
    Gpu than its owner they exist a second time."""

    @property
    def parameters(self) -> int:
        """Elements owned by this layer."""
        return sum(part.parameters for part in self.parts)

    @property
    def tensors(self) -> int:
        """Parameter tensors owned by this layer."""
        return sum(part.tensors for part in self.parts)

    @property
    def largest(self) -> int:
        """Elements of the largest tensor used here, tied ones included."""
        own = max((part.largest for part in self.parts), default=0)
        return max(own, self.tied_parameters)

    def component_parameters(self, component: str) -> int:
        """Elements of one component in this layer."""
        return sum(p.parameters for p in self.parts if p.component == component)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """How a block of a known transformer family computes; sizes in elements."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    positions: int
    """Longest sequence with learned positions, or the configured context length."""
    norm: Literal["layernorm", "rmsnorm", "rmsnorm_gemma", "rmsnorm_t5"]
    activation: Literal["relu", "gelu", "gelu_new", "gelu_tanh", "silu", "quick_gelu"]
    gated: bool = False
    biases: bool = False
    rotary: Literal["none", "full", "partial"] = "none"
    fused_qkv: bool = False
    """Queries, keys and values are views of one tensor, which therefore stays whole."""
    qk_norm: bool = False
    norm_place: Literal["before", "after", "both"] = "before"
    parallel: bool = False
    """Attention and MLP read the same input side by side."""
    shared_norm: bool = False
    """In a parallel block: one norm feeds both."""
    attention: Literal["causal", "bidirectional", "encoder_decoder"] = "causal"
    softcap: bool = False
    final_softcap: bool = False
    softmax_fp32: bool = True
    """Eager attention computes the softmax in fp32 and casts back."""
    alibi: bool = False
    experts: int = 0
    experts_per_token: int = 0
    embedding_dropout_ratio: float = 0.0
    attention_dropout_ratio: float = 0.0
    hidden_dropout_ratio: float = 0.0
    activation_dropout_ratio: float = 0.0
    embedding_norm: bool = False
    scaled_embedding: bool = False
    image_tokens: int = 0
    """Vision: patches + class token; the sequence length is then fixed."""
    image_size: int = 0
    channels: int = 0
    labels: int = 0

    @property
    def attention_width(self) -> int:
        """heads x head_dim: width of queries and of the attention's output."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """kv_heads x head_dim: width of keys, and of values."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model: family, layers in order, and, if known, how a block computes."""

    family: str
    name: str
    head: str
    layers: tuple[LayerSpec, ...]
    shape: TransformerShape | None
    dtype: str
    """How the source stores the weights; the Workload says how they are run."""
    source: str
    """Where this came from: config.json, safetensors, onnx, well-known."""
    tied_groups: tuple[tuple[str, ...], ...] = ()

    @property
    def parameter_count(self) -> int:
        """Elements, tied storages once."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def tensor_count(self) -> int:
        """Parameter tensors, tied storages once."""
        return sum(layer.tensors for layer in self.layers)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the weights as the source stores them."""
        return sum(part.stored_bytes for layer in self.layers for part in layer.parts)

    @property
    def block_count(self) -> int:
        """Layers that are neither embedding nor head."""
        return sum(layer.kind not in ("embedding", "head") for layer in self.layers)

    @property
    def activations_are_a_guess(self) -> bool:
        """True where the layers' arithmetic is unknown, as in a bare tensor list."""
        return self.shape is None

    def component_parameters(self) -> dict[str, int]:
        """Elements by component, in the order of COMPONENTS, zeros left out."""
        sums = {
            component: sum(
                layer.component_parameters(component) for layer in self.layers
            )
            for component in COMPONENTS
        }
        return {component: count for component, count in sums.items() if count}

    def to_json(self) -> dict[str, Any]:
        """Plain dict that `from_json` reads back to an equal ModelSpec."""
        return {
            "version": 1,
            "family": self.family,
            "name": self.name,
            "head": self.head,
            "dtype": self.dtype,
            "source": self.source,
            "tied_groups": [list(group) for group in self.tied_groups],
            "shape": asdict(self.shape) if self.shape else None,
            "layers": [asdict(layer) for layer in self.layers],
            "parameter_count": self.parameter_count,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "ModelSpec":
        """Read back what `to_json` wrote. Raises SpecInvalid for anything else."""
        try:
            if data["version"] != 1:
                raise SpecInvalid({"version": "only version 1 can be read"})
            spec = cls(
                family=str(data["family"]),
                name=str(data["name"]),
                head=str(data["head"]),
                dtype=str(data["dtype"]),
                source=str(data["source"]),
                tied_groups=tuple(
                    tuple(map(str, group)) for group in data["tied_groups"]
                ),
                shape=_shape_from_json(data["shape"]),
                layers=tuple(_layer_from_json(layer) for layer in data["layers"]),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise SpecInvalid({"spec": f"not a ModelSpec: {error!r}"[:200]}) from error
        check(spec)
        return spec


def check(spec: ModelSpec) -> None:
    """Raise SpecInvalid unless a ModelSpec, wherever it came from, makes sense."""
    problems: dict[str, str] = {}
    if not spec.layers:
        problems["layers"] = "there are none"
    if len(spec.layers) > MAX_LAYERS:
        problems["layers"] = f"{len(spec.layers)} layers; at most {MAX_LAYERS}"
    if spec.dtype not in DTYPE_BYTES:
        problems["dtype"] = (
            f"'{spec.dtype[:40]}' is not one of {', '.join(DTYPE_BYTES)}"
        )
    if spec.head not in HEADS:
        problems["head"] = f"'{spec.head[:40]}' is not one of {', '.join(HEADS)}"
    for layer in spec.layers:
        numbers = [layer.tied_parameters] + [
            getattr(part, field.name)
            for part in layer.parts
            for field in fields(Part)
            if field.name != "component"
        ]
        if layer.kind not in LAYER_KINDS or any(
            type(number) is not int or number < 0 for number in numbers
        ):
            problems["layers"] = f"'{layer.name[:80]}' has a wrong kind or number"
    if not problems and not 0 < spec.parameter_count <= MAX_PARAMETERS:
        problems["parameter_count"] = (
            f"{spec.parameter_count:,} parameters; between 1 and {MAX_PARAMETERS:,}"
        )
    if spec.shape is not None:
        problems |= shape_problems(spec.shape)
    if problems:
        raise SpecInvalid(problems)


def shape_problems(shape: TransformerShape) -> dict[str, str]:
    """Contradictions between the sizes of a block, by field."""
    problems = {}
    for name in ("hidden", "heads", "kv_heads", "head_dim", "intermediate"):
        if type(getattr(shape, name)) is not int or getattr(shape, name) < 1:
            problems[name] = "must be a whole number above zero"
    if problems:
        return problems
    if shape.kv_heads > shape.heads or shape.heads % shape.kv_heads:
        problems["num_key_value_heads"] = (
            f"{shape.kv_heads} key/value heads do not divide {shape.heads} heads"
        )
    if shape.experts and not 1 <= shape.experts_per_token <= shape.experts:
        problems["num_experts_per_tok"] = (
            f"{shape.experts_per_token} of {shape.experts} experts per token"
        )
    return problems


def part(
    component: Component, shapes: Sequence[Sequence[int]], *, element_bytes: float = 4
) -> Part:
    """One Part out of its tensors' shapes.

    >>> part("mlp", [(4, 3), (4,)]).parameters
    16
    """
    sizes = [_product(shape) for shape in shapes]
    total = sum(sizes)
    return Part(
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
    )


def _product(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _edges(shape: Sequence[int], size: int) -> int:
    """Numbers a factored second moment keeps: rows and columns of the last two axes."""
    if len(shape) < 2 or not size:
        return size
    return size // shape[-1] + size // shape[-2]


def _shape_from_json(data: Mapping[str, Any] | None) -> TransformerShape | None:
    if data is None:
        return None
    for field in fields(TransformerShape):
        value = data.get(field.name, field.default)
        wanted = (int, float) if field.type is float else field.type
        if not isinstance(wanted, type | tuple):
            wanted = str
        if not isinstance(value, wanted) or value in (float("inf"), float("-inf")):
            raise SpecInvalid({field.name: "has the wrong type in the stored shape"})
    return TransformerShape(**data)


def _layer_from_json(data: Mapping[str, Any]) -> LayerSpec:
    return LayerSpec(
        name=str(data["name"]),
        kind=data["kind"],
        parts=tuple(Part(**one) for one in data["parts"]),
        tied_parameters=data["tied_parameters"],
    )

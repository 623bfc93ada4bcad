"""A ModelSpec with low-rank adapters beside frozen weights, or with quantized weights.

LoRA (arXiv:2106.09685) as PEFT 0.21 does it: beside each named linear layer W (outputs
x inputs) two trained matrices A (rank x inputs) and B (outputs x rank), in fp32 for
every dtype of the model (`autocast_adapter_dtype`). Everything else is frozen.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from placement.planner.model.quantized_weights import INT8, NF4, quantized
from placement.planner.model.spec import LayerPart, LayerSpec, Linear, ModelSpec
from placement.planner.values.errors import SpecInvalid
from telemetry.protocol.sentences import sentence

MAX_RANK = 2**16
ALL_LINEAR = "all-linear"
"""PEFT's word for every linear layer except the head."""
ADAPTER_BYTES = 4
EXPERT_NAMES = frozenset(
    ("gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")
)
FUSED_FAMILIES = frozenset(
    ("deepseek_v2", "deepseek_v3", "glm4_moe", "mixtral", "olmoe", "qwen3_moe")
)
"""In these families PEFT uses these names for the experts stacked in one tensor."""
MAMBA_FAMILIES = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")
MAMBA_NAMES = frozenset(("out_proj",))
"""In these families PEFT refuses adapters there: Mamba's kernels read the weights."""


def with_lora(
    spec: ModelSpec,
    *,
    rank: int,
    targets: Sequence[str] = ("q_proj", "v_proj"),
) -> ModelSpec:
    """Return the model with adapters of `rank` on the named layers and all else frozen.

    Names are the family's own (`q_proj`, `c_attn`, `query`), or "all-linear". Raises
    SpecInvalid for an invalid rank, and for names that the model does not have.
    """
    if type(rank) is not int or not 1 <= rank <= MAX_RANK:
        raise SpecInvalid(
            {
                "lora_rank": sentence(
                    "must be between 1 and {max_rank}", max_rank=f"{MAX_RANK:,}"
                )
            }
        )
    if any(one.component == "adapter" for layer in spec.layers for one in layer.parts):
        raise SpecInvalid({"lora_rank": sentence("the model has adapters already")})
    known = target_names(spec)
    wanted = set(targets)
    if wanted == {ALL_LINEAR}:
        wanted = set(_names(layer for layer in spec.layers if layer.kind != "head"))
    missing = sorted(wanted - set(known)) if wanted else [sentence("none named")]
    if missing or not wanted:
        raise SpecInvalid(
            {
                "lora_targets": sentence(
                    "{missing}: not among its linear layers, which are {value}",
                    missing=", ".join(missing)[:120],
                    value=", ".join(known) or "not known",
                )
            }
        )
    experts = sorted(wanted & EXPERT_NAMES)
    if spec.family in FUSED_FAMILIES and experts:
        raise SpecInvalid(
            {
                "lora_targets": sentence(
                    "{experts}: adapters on stacked experts are not modelled; name "
                    "the attention's linear layers",
                    experts=", ".join(experts),
                )
            }
        )
    mixers = sorted(wanted & MAMBA_NAMES)
    if spec.family in MAMBA_FAMILIES and mixers:
        raise SpecInvalid(
            {
                "lora_targets": sentence(
                    "{names}: PEFT refuses adapters there, because Mamba's kernels "
                    "read these weights directly",
                    names=", ".join(mixers),
                )
            }
        )
    shape = spec.shape
    if shape is not None:
        shape = replace(shape, lora_rank=rank, lora_targets=tuple(sorted(wanted)))
    with_head = set(targets) != {ALL_LINEAR}
    token_ratio = spec.flops_ratio if spec.sample_tokens else 1.0
    layers = tuple(
        _adapted(
            layer,
            rank,
            wanted if with_head or layer.kind != "head" else set(),
            token_ratio,
        )
        for layer in spec.layers
    )
    return replace(spec, layers=layers, shape=shape)


def with_quantized(spec: ModelSpec, weights: Literal["int8", "nf4"]) -> ModelSpec:
    """Return the model with the linear layers of its blocks quantized.

    They have 8 bits by rows, or nf4 whose blocks' constants are quantized too (QLoRA).
    Raises SpecInvalid if none are known.
    """
    schemes = {"int8": INT8, "nf4": NF4}
    if weights not in schemes:
        raise SpecInvalid(
            {
                "weights": sentence(
                    "'{weights}' must be int8 or nf4", weights=f"{weights!s:.20}"
                )
            }
        )
    return replace(quantized(spec, schemes[weights]), quantized_as=weights)


def target_names(spec: ModelSpec) -> tuple[str, ...]:
    """Return the names of the linear layers that can have adapters, sorted."""
    return tuple(sorted(_names(spec.layers)))


def _names(layers: Iterable[LayerSpec]) -> set[str]:
    return {
        one.name for layer in layers for part in layer.parts for one in part.linears
    }


def _adapted(
    layer: LayerSpec, rank: int, targets: set[str], token_ratio: float
) -> LayerSpec:
    frozen = tuple(replace(one, frozen=True) for one in layer.parts)
    chosen = [
        one for part in layer.parts for one in part.linears if one.name in targets
    ]
    extra = (_adapter(rank, chosen, token_ratio),) if chosen else ()
    return replace(layer, parts=(*frozen, *extra))


def _adapter(
    rank: int, linears: Sequence[Linear], token_ratio: float = 1.0
) -> LayerPart:
    """Return A and B of every linear layer: rank x (inputs + outputs) elements each.

    `token_ratio`: part of a sample's tokens that these layers see on average.
    """
    sides = sum((one.inputs + one.outputs) * one.copies for one in linears)
    pairs = sum(one.copies for one in linears)
    parameters = rank * sides
    return LayerPart(
        component="adapter",
        parameters=parameters,
        tensors=2 * pairs,
        largest=rank * max(max(one.inputs, one.outputs) for one in linears),
        edges=round(token_ratio * (2 * rank * pairs + sides)),
        matrix_parameters=parameters,
        stored_bytes=ADAPTER_BYTES * parameters,
    )


def usual_targets(spec: ModelSpec) -> tuple[str, ...]:
    """Return LoRA's default targets: query and value, as in its paper.

    For families with other names, or with both in one layer, they are all linear layers
    except the head, the experts and the mixers that `with_lora` cannot adapt.
    """
    known = target_names(spec)
    usual = ("q_proj", "v_proj")
    if set(usual) <= set(known):
        return usual
    left = set(_names(layer for layer in spec.layers if layer.kind == "head"))
    if spec.family in FUSED_FAMILIES:
        left |= EXPERT_NAMES
    if spec.family in MAMBA_FAMILIES:
        left |= MAMBA_NAMES
    return tuple(name for name in known if name not in left)


def adapted(
    spec: ModelSpec,
    *,
    weights: str = "full",
    lora_rank: int = 0,
    lora_targets: Sequence[str] = (),
) -> ModelSpec:
    """Return the model with quantized weights, adapters, or both (QLoRA).

    Args:
        spec: the model.
        weights: full, int8 or nf4.
        lora_rank: of the adapters; 0: none.
        lora_targets: names of the adapted layers; empty: the usual ones.

    Raises:
        SpecInvalid: by field.
    """
    if weights != "full":
        spec = with_quantized(spec, weights)  # type: ignore[arg-type]
    if lora_rank:
        targets = lora_targets or usual_targets(spec)
        spec = with_lora(spec, rank=lora_rank, targets=targets)
    return spec

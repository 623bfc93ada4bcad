"""Weights in 8 or 4 bits: their bytes and those of their block constants, exactly.

Quantization applies to the linear layers of the blocks. Tables, norms, routers, heads
and experts that are stacked in one tensor keep their dtype, as in bitsandbytes 0.48,
AutoGPTQ and AutoAWQ. Only the linear layers that a source names can be quantized.

    int8    1 byte a weight, 4 bytes a row         (bitsandbytes LLM.int8: CB, SCB)
    nf4     1/2 byte, 4 bytes a block of 64        (QLoRA, arXiv:2305.14314)
    nf4 with quantized constants: 1/2 byte, 1 byte a block of 64, 4 bytes each 256
            blocks and 4 more; about 4.127 bits a weight
    gptq    packed in 32-bit words, 2 bytes a group and column, zeros packed,
            4 bytes a row
    awq     the same without the 4 bytes a row
    fp8     1 byte, 4 bytes a block of 128 x 128, or 4 bytes a tensor
    mxfp4   1/2 byte, 1 byte a block of 32 (OCP Microscaling Formats 1.0, section 5);
            experts that are stacked in one tensor only, as gpt-oss is published

bitsandbytes' code tables (64 bytes, 1 KiB with quantized constants, a tensor) are
counted too, because they are on the Gpu as long as the weight is.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from placement.planner.model.spec import LayerPart, LayerSpec, Linear, ModelSpec
from placement.planner.values.errors import SpecInvalid
from telemetry.protocol.sentences import sentence

BLOCK = 64
CONSTANTS_BLOCK = 256
CODE_BYTES = 16 * 4
"""Sixteen fp32 values of nf4 or fp4."""
CONSTANTS_CODE_BYTES = 256 * 4
METHODS = ("bitsandbytes_8bit", "bitsandbytes_4bit", "gptq", "awq", "fp8", "mxfp4")
Method = Literal[
    "bitsandbytes_8bit", "bitsandbytes_4bit", "gptq", "awq", "fp8", "mxfp4"
]
MX_BLOCK = 32


@dataclass(frozen=True, slots=True)
class Scheme:
    """How weights are quantized."""

    method: Method
    bits: int = 4
    group: int = 128
    """Inputs that share one scale. GPTQ's and AWQ's -1 (one group a column) is 0."""
    double: bool = False
    """The blocks' constants are quantized too (bitsandbytes)."""
    block: int = 128
    """fp8: side of the square that shares one scale; 0: one scale a tensor."""
    row_order: bool = True
    """GPTQ stores each row's group (g_idx)."""
    skip: tuple[str, ...] = ()
    """Names of linear layers that stay whole."""

    @property
    def title(self) -> str:
        """Return it in words, for the notes of a ModelSpec."""
        if self.method == "bitsandbytes_4bit":
            return (
                sentence("4 bit in blocks of 64, their constants quantized too")
                if self.double
                else sentence("4 bit in blocks of 64")
            )
        names = {
            "bitsandbytes_8bit": sentence("8 bit by rows"),
            "fp8": "fp8",
            "mxfp4": sentence("MXFP4, 4 bit in blocks of 32"),
        }
        groups = (
            sentence("groups of {group}", group=self.group)
            if self.group
            else sentence("one group a column")
        )
        return names.get(
            self.method,
            sentence(
                "{method}, {bits} bit, {groups}",
                method=self.method.upper(),
                bits=self.bits,
                groups=groups,
            ),
        )


INT8 = Scheme("bitsandbytes_8bit", bits=8)
NF4 = Scheme("bitsandbytes_4bit", double=True)


def weight_bytes(scheme: Scheme, outputs: int, inputs: int) -> int:
    """Return the bytes of one linear layer's weight with all its constants.

    >>> weight_bytes(INT8, 10, 64)
    680
    """
    elements = outputs * inputs
    if scheme.method == "bitsandbytes_8bit":
        return elements + 4 * outputs
    if scheme.method == "bitsandbytes_4bit":
        blocks = -(-elements // BLOCK)
        packed = -(-elements // 2) + CODE_BYTES
        if not scheme.double:
            return packed + 4 * blocks
        offset_bytes = 4
        constants = 4 * -(-blocks // CONSTANTS_BLOCK) + CONSTANTS_CODE_BYTES
        return packed + blocks + constants + offset_bytes
    if scheme.method == "mxfp4":
        return -(-elements // 2) + -(-elements // MX_BLOCK)
    if scheme.method == "fp8":
        if not scheme.block:
            return elements + 4
        return elements + 4 * -(-outputs // scheme.block) * -(-inputs // scheme.block)
    groups = -(-inputs // scheme.group) if scheme.group else 1
    scales = 2 * groups * outputs
    if scheme.method == "gptq":
        words = -(-inputs * scheme.bits // 32) * outputs
        zeros = groups * -(-outputs * scheme.bits // 32)
        return 4 * words + 4 * zeros + scales + (4 * inputs if scheme.row_order else 0)
    columns = -(-outputs * scheme.bits // 32)
    return 4 * inputs * columns + 4 * groups * columns + scales


def quantized(spec: ModelSpec, scheme: Scheme) -> ModelSpec:
    """Return the model with the linear layers of its blocks quantized and frozen.

    Raises SpecInvalid if no linear layer is known, or if they are quantized already.
    """
    if spec.is_quantized:
        raise SpecInvalid({"weights": sentence("are quantized already")})
    layers = [
        layer
        if layer.kind in ("embedding", "head")
        else replace(layer, parts=tuple(_parts(spec, layer, scheme)))
        for layer in spec.layers
    ]
    if not any(part.weight_bits for layer in layers for part in layer.parts):
        raise SpecInvalid(
            {
                "weights": sentence(
                    "none of its linear layers are known, so none can be quantized"
                )
            }
        )
    return replace(
        spec, layers=tuple(layers), notes=(*spec.notes, *_notes(layers, scheme))
    )


def _notes(layers: Iterable[LayerSpec], scheme: Scheme) -> list[str]:
    told: list[str] = [
        sentence("experts: {scheme}; the rest as stored", scheme=scheme.title)
        if scheme.method == "mxfp4"
        else sentence(
            "linear layers of the blocks: {scheme}; the rest as stored",
            scheme=scheme.title,
        )
    ]
    whole = sum(
        part.parameters
        for layer in layers
        for part in layer.parts
        if part.component == "mlp" and not part.linears and part.weight_bits is None
    )
    if whole:
        told.append(
            sentence(
                "{whole} parameters of experts stacked in one tensor stay as "
                "stored: the pinned libraries quantize linear layers only",
                whole=f"{whole:,}",
            )
        )
    return told


def _parts(spec: ModelSpec, layer: LayerSpec, scheme: Scheme) -> Iterable[LayerPart]:
    routed = any(part.component == "router" for part in layer.parts)
    for part in layer.parts:
        if scheme.method == "mxfp4":
            stacked = routed and part.component == "mlp" and not part.linears
            yield _experts(spec, part, scheme) if stacked else part
            continue
        chosen = [one for one in part.linears if one.name not in scheme.skip]
        if chosen:
            yield from cut(part, chosen, partial(_linear_bytes, scheme))
        elif routed and part.component == "mlp" and scheme.method == "fp8":
            yield _experts(spec, part, scheme)
        else:
            yield part


def _linear_bytes(scheme: Scheme, one: Linear) -> int:
    return weight_bytes(scheme, one.outputs, one.inputs)


def _experts(spec: ModelSpec, part: LayerPart, scheme: Scheme) -> LayerPart:
    """Return stacked experts in fp8 or MXFP4, with scales for each expert.

    As transformers' FP8Experts and Mxfp4GptOssExperts. Biases keep their form.
    """
    if spec.shape is None or not spec.shape.experts:
        return part
    hidden = spec.shape.hidden
    inner = spec.shape.expert_intermediate or spec.shape.intermediate
    stored_bytes = spec.shape.experts * (
        weight_bytes(scheme, 2 * inner, hidden) + weight_bytes(scheme, hidden, inner)
    )
    if scheme.method == "fp8":
        return replace(part, frozen=True, weight_bits=8.0, stored_bytes=stored_bytes)
    weights = spec.shape.experts * 3 * inner * hidden
    width = part.stored_bytes / part.parameters
    stored_bytes += int(width * (part.parameters - weights))
    bits = round(8 * stored_bytes / part.parameters, 3)
    return replace(part, frozen=True, weight_bits=bits, stored_bytes=stored_bytes)


def cut(
    part: LayerPart, chosen: list[Linear], stored: Callable[[Linear], int]
) -> list[LayerPart]:
    """Return the chosen linear layers' weights, quantized, and the LayerPart's rest if
    any.
    """
    sizes = [(one.outputs * one.inputs, one) for one in chosen]
    parameters = sum(size * one.copies for size, one in sizes)
    tensors = sum(one.copies for one in chosen)
    edges = sum((one.outputs + one.inputs) * one.copies for one in chosen)
    stored_bytes = sum(stored(one) * one.copies for one in chosen)
    weights = LayerPart(
        component=part.component,
        parameters=parameters,
        tensors=tensors,
        largest=max(size for size, _ in sizes),
        edges=edges,
        matrix_parameters=parameters,
        stored_bytes=stored_bytes,
        frozen=True,
        weight_bits=_bits(8 * stored_bytes / parameters),
        linears=tuple(chosen),
    )
    left = part.parameters - parameters
    if not left:
        return [weights]
    others = tuple(one for one in part.linears if one not in chosen)
    matrices = part.matrix_parameters - parameters
    longest = max(
        (one.outputs * one.inputs for one in others),
        default=max(one.outputs for one in part.linears),
    )
    rest = replace(
        part,
        parameters=left,
        tensors=part.tensors - tensors,
        largest=min(left, part.largest, max(longest, matrices if not others else 0)),
        edges=part.edges - edges,
        matrix_parameters=matrices,
        stored_bytes=part.stored_bytes * left // part.parameters,
        linears=others,
    )
    return [weights, rest]


def _bits(exact: float) -> float:
    """Return bits per weight in words: 8 for 8.01, otherwise three digits."""
    return float(round(exact)) if abs(exact - round(exact)) < 0.1 else round(exact, 3)

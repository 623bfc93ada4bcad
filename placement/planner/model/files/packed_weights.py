"""Quantized checkpoints: join the tensors of each weight.

A quantized weight is stored as several tensors: packed integers, scales, zero points.
Their names and shapes alone determine the number of weights:

    GPTQ    qweight int32 (in x bits / 32, out), scales (groups, out), qzeros, g_idx
    AWQ     qweight int32 (in, out x bits / 32), scales (groups, out), qzeros
    bitsandbytes 8 bit   weight int8 (out, in), SCB fp32 (out)
    bitsandbytes 4 bit   weight uint8 (n / 2, 1), weight.absmax, weight.quant_map ...
    fp8     weight fp8, weight_scale or weight_scale_inv
    MXFP4   *_blocks uint8 (..., n / 2), *_scales uint8

Sources: AutoGPTQ, AutoAWQ and bitsandbytes' linear layers; transformers'
integrations/mxfp4.py. Bytes are the files' own, so they are exact. Whole-number tensors
that look like weights in another layout are refused, because leaving them out would
give a wrong result.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from math import isqrt

from placement.planner.model.files.tensor_inventory import TensorInfo
from placement.planner.values.errors import SpecInvalid
from telemetry.protocol.sentences import sentence

_COMPANIONS = (
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "SCB",
    "weight_format",
    "weight_scale_inv",
    "weight_scale",
    "input_scale",
)
_WEIGHT_WORDS = ("weight", "packed", "qweight", "blocks")
_SMALL = ("fp8", "fp6", "fp4")
_WHOLE = ("int8", "int16", "int32", "int64")
Group = dict[str, TensorInfo]


def unpacked(
    tensors: Sequence[TensorInfo],
) -> tuple[list[TensorInfo], list[str]]:
    """Return the tensors with quantized weights at their original shapes, and notes.

    Raises SpecInvalid for integer weights in an unknown layout.
    """
    if not any(one.dtype in (*_WHOLE, *_SMALL) for one in tensors):
        return list(tensors), []
    groups: dict[str, Group] = {}
    for tensor in tensors:
        stem, suffix = _split(tensor.name)
        groups.setdefault(stem, {})[suffix] = tensor
    answer: list[TensorInfo] = []
    kinds: dict[str, int] = {}
    for stem, group in groups.items():
        made, rest, kind = _whole(stem, group)
        if made is not None:
            answer.append(made)
            kinds[kind] = kinds.get(kind, 0) + 1
        for one in rest:
            _refuse_weight(one)
        answer += rest
    notes: list[str] = [
        sentence(
            "{count} weights are quantized ({kind}): counted as they unpack, bytes "
            "as they are stored",
            count=f"{count:,}",
            kind=kind,
        )
        for kind, count in sorted(kinds.items())
    ]
    return answer, notes


def _split(name: str) -> tuple[str, str]:
    """Return ("h.0.fc", "weight.absmax"): a weight's stem, and the kind of the
    tensor.
    """
    for mark in (".weight.", ".weight_"):
        stem, found, rest = name.partition(mark)
        if found and not name.endswith((".weight_g", ".weight_v")):
            return stem, f"weight{mark[-1]}{rest}"
    for end in ("_blocks", "_scales"):
        if name.endswith(end):
            return name.removesuffix(end), end
    stem, _, suffix = name.rpartition(".")
    if suffix == "weight" or suffix in _COMPANIONS:
        return stem, suffix
    return name, ""


def _whole(stem: str, group: Group) -> tuple[TensorInfo | None, list[TensorInfo], str]:
    """Return (the whole weight or None, tensors that are not part of it, its kind)."""
    weight = group.get("weight")
    if "qweight" in group and "scales" in group:
        return _gptq_or_awq(stem, group)
    if "_blocks" in group and "_scales" in group:
        blocks = group["_blocks"]
        shape = (*blocks.shape[:-1], 2 * blocks.shape[-1]) if blocks.shape else ()
        return _made(stem, shape, group, None), [], "MXFP4"
    if weight is None:
        return None, list(group.values()), ""
    if weight.dtype == "int8" and "weight.absmax" in group:
        return (
            _made(f"{stem}.weight", _square(2 * weight.elements), group, None),
            [],
            sentence("4 bit"),
        )
    if weight.dtype == "int8" and "SCB" in group and len(weight.shape) == 2:
        product = (weight.shape[0], weight.shape[1])
        return _made(weight.name, weight.shape, group, product), [], sentence("8 bit")
    if weight.dtype in _SMALL and len(weight.shape) >= 2:
        return _made(weight.name, weight.shape, group, weight.product), [], weight.dtype
    return None, list(group.values()), ""


def _gptq_or_awq(stem: str, group: Group) -> tuple[TensorInfo, list[TensorInfo], str]:
    packed, scales = group["qweight"].shape, group["scales"].shape
    if len(packed) != 2 or len(scales) != 2 or not scales[1] or not packed[1]:
        raise SpecInvalid(
            {f"{stem[:70]}.qweight": sentence("must have two axes, as its scales")}
        )
    outputs = scales[1]
    if packed[1] == outputs:
        kind = "GPTQ"
        zeros = group.get("qzeros")
        if "g_idx" in group and group["g_idx"].elements:
            inputs = group["g_idx"].elements
        elif zeros is not None and len(zeros.shape) == 2 and zeros.shape[1]:
            inputs = packed[0] * outputs // zeros.shape[1]
        else:
            raise SpecInvalid(
                {f"{stem[:70]}.qweight": sentence("has neither g_idx nor qzeros")}
            )
    else:
        kind, inputs = "AWQ", packed[0]
    logical, bits_stored = inputs * outputs, 32 * packed[0] * packed[1]
    if (
        not logical
        or bits_stored % logical
        or bits_stored // logical not in (2, 3, 4, 8)
    ):
        raise SpecInvalid(
            {
                f"{stem[:70]}.qweight": sentence(
                    "does not hold {inputs} x {outputs} weights",
                    inputs=inputs,
                    outputs=outputs,
                )
            }
        )
    rest = [group[name] for name in group if name not in _COMPANIONS]
    parts = {name: one for name, one in group.items() if name in _COMPANIONS}
    made = _made(f"{stem}.weight", (outputs, inputs), parts, (outputs, inputs))
    return (
        made,
        rest,
        sentence(
            "{kind}, {bits_stored} bit", kind=kind, bits_stored=bits_stored // logical
        ),
    )


def _made(
    name: str,
    shape: tuple[int, ...],
    group: Mapping[str, TensorInfo],
    product: tuple[int, int] | None,
) -> TensorInfo:
    size = sum(one.stored_bytes for one in group.values())
    return TensorInfo(name, shape, "int8", True, size, product)


@cache
def _square(elements: int) -> tuple[int, int]:
    """Return the two factors of a number that are nearest to each other.

    They are used as the sides of a matrix if the file does not have them. Only the
    guess of activations uses them.
    """
    if not elements:
        return 0, 0
    side = isqrt(elements)
    floor = max(1, side - 100_000)
    while side > floor and elements % side:
        side -= 1
    return (elements // side, side) if elements % side == 0 else (elements, 1)


def _refuse_weight(tensor: TensorInfo) -> None:
    """Raise SpecInvalid for whole numbers with the name of a weight."""
    last = tensor.name.rpartition(".")[2].lower()
    if (
        tensor.dtype in _WHOLE
        and len(tensor.shape) >= 2
        and any(word in last for word in _WEIGHT_WORDS)
    ):
        raise SpecInvalid(
            {
                tensor.name[:80]: sentence(
                    "are weights as {dtype} in a layout that is not known here "
                    "(known: GPTQ, AWQ, bitsandbytes, fp8, MXFP4). Give the model's "
                    "config.json instead",
                    dtype=tensor.dtype,
                )
            }
        )

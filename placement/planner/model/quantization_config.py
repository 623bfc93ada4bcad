"""Read `quantization_config` of a config.json: how its weights are quantized.

Known: bitsandbytes (8 and 4 bit), GPTQ, AWQ, block-wise fp8, MXFP4. Another method is
refused by name, because counting its weights as whole ones would be wrong.
"""

from collections.abc import Mapping
from typing import Any

from placement.planner.model.config_reader import ConfigFields
from placement.planner.model.quantized_weights import Scheme
from placement.planner.values.errors import SpecInvalid
from telemetry.protocol.sentences import sentence

_FIELD = "quantization_config"


def read_quantization(config: Mapping[str, Any]) -> Scheme | None:
    """Return the Scheme of a config.json; None if its weights are whole.

    Raises SpecInvalid by field.
    """
    given = config.get(_FIELD)
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise SpecInvalid({_FIELD: sentence("must be an object")})
    fields = ConfigFields(given)
    method = fields.word("quant_method")
    if not method and (given.get("load_in_4bit") or given.get("load_in_8bit")):
        method = "bitsandbytes"
    reader = _METHODS.get(method)
    scheme = reader(fields) if reader else None
    problems = {f"{_FIELD}.{name}": text for name, text in fields.problems.items()}
    if reader is None and not problems:
        problems[f"{_FIELD}.quant_method"] = sentence(
            "'{method}' is not known; known: {methods}. A .safetensors file or all "
            "shards' headers may work",
            method=method[:40],
            methods=", ".join(_METHODS),
        )
    if problems:
        raise SpecInvalid(problems)
    return scheme


def _bitsandbytes(fields: ConfigFields) -> Scheme | None:
    if fields.flag("load_in_4bit") or fields.flag("_load_in_4bit"):
        kind = fields.word("bnb_4bit_quant_type", default="fp4")
        fields.require(
            "bnb_4bit_quant_type", kind in ("nf4", "fp4"), sentence("is not nf4 or fp4")
        )
        return Scheme(
            "bitsandbytes_4bit",
            double=fields.flag("bnb_4bit_use_double_quant"),
            skip=_skipped(fields, "llm_int8_skip_modules"),
        )
    if fields.flag("load_in_8bit") or fields.flag("_load_in_8bit"):
        skip = _skipped(fields, "llm_int8_skip_modules")
        return Scheme("bitsandbytes_8bit", bits=8, skip=skip)
    fields.require("load_in_4bit", False, sentence("neither 4 nor 8 bits are set"))
    return None


def _group(fields: ConfigFields, *names: str) -> int:
    given = fields.whole(*names, default=128, low=-1, high=2**20)
    fields.require(names[0], given != 0, sentence("must be -1 or above 0"))
    return max(0, given)


def _gptq(fields: ConfigFields) -> Scheme:
    bits = fields.whole("bits", default=4, high=8)
    fields.require("bits", bits in (2, 3, 4, 8), sentence("must be 2, 3, 4 or 8"))
    return Scheme("gptq", bits=bits, group=_group(fields, "group_size"))


def _awq(fields: ConfigFields) -> Scheme:
    bits = fields.whole("bits", "w_bit", default=4, high=8)
    fields.require("bits", bits in (4, 8), sentence("must be 4 or 8"))
    return Scheme(
        "awq",
        bits=bits,
        group=_group(fields, "group_size", "q_group_size"),
        skip=_skipped(fields, "modules_to_not_convert"),
    )


def _fp8(fields: ConfigFields) -> Scheme:
    block = fields.peek("weight_block_size")
    square = (
        isinstance(block, list)
        and len(block) == 2
        and type(block[0]) is int
        and block[0] == block[1]
        and 1 <= block[0] <= 2**16
    )
    fields.require(
        "weight_block_size",
        block is None or square,
        sentence("must be two equal whole numbers"),
    )
    return Scheme(
        "fp8",
        bits=8,
        block=block[0] if square else 0,
        skip=_skipped(fields, "modules_to_not_convert"),
    )


def _skipped(fields: ConfigFields, name: str) -> tuple[str, ...]:
    """Return the last parts of the names of layers that stay whole."""
    given = fields.peek(name)
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        fields.require(name, False, sentence("must be a list of names"))
        return ()
    return tuple(sorted({one.rsplit(".", 1)[-1][:80] for one in given}))


def _mxfp4(_fields: ConfigFields) -> Scheme:
    return Scheme("mxfp4")


_METHODS = {
    "bitsandbytes": _bitsandbytes,
    "gptq": _gptq,
    "awq": _awq,
    "fp8": _fp8,
    "mxfp4": _mxfp4,
}

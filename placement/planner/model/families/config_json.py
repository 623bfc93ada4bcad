"""Parse a Hugging Face config.json into a ModelSpec, in microseconds, building nothing.

The families are in FAMILIES. The defaults are those of transformers 5.23's config
classes, because a config.json leaves out fields that equal the default. Counts are
exact to the element. Tests compare them with the real classes' published counts.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from placement.planner.model.config_reader import ConfigFields, check_size
from placement.planner.model.families.decoders import (
    bloom,
    falcon,
    gpt2,
    gpt_neox,
    gptj,
    opt,
    phi,
)
from placement.planner.model.families.encoder_decoders import mt5, t5, whisper
from placement.planner.model.families.encoders import (
    bert,
    distilbert,
    electra,
    roberta,
    vit,
    xlm_roberta,
)
from placement.planner.model.families.hybrids import jamba
from placement.planner.model.families.llama import LLAMA_FAMILIES, read_llama
from placement.planner.model.families.mixture_of_experts import EXPERT_FAMILIES
from placement.planner.model.families.state_spaces import mamba, mamba2
from placement.planner.model.quantization_config import read_quantization
from placement.planner.model.quantized_weights import quantized
from placement.planner.model.spec import DTYPE_BYTES, ModelSpec, check
from placement.planner.values.errors import (
    SpecInvalid,
    UnknownFamily,
    UnknownHead,
)
from telemetry.protocol.sentences import sentence

Reader = Callable[[ConfigFields, float], ModelSpec]
FAMILIES: dict[str, Reader] = {
    "bert": bert,
    "bloom": bloom,
    "distilbert": distilbert,
    "electra": electra,
    "falcon": falcon,
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "gptj": gptj,
    "falcon_mamba": mamba,
    "jamba": jamba,
    "mamba": mamba,
    "mamba2": mamba2,
    "mt5": mt5,
    "opt": opt,
    "phi": phi,
    "roberta": roberta,
    "t5": t5,
    "vit": vit,
    "whisper": whisper,
    "xlm-roberta": xlm_roberta,
    **{
        name: partial(read_llama, family=family)
        for name, family in (LLAMA_FAMILIES | EXPERT_FAMILIES).items()
    },
}
TEXT_MODELS = {"llama4": "llama4_text"}
"""Families of text and images, and the family of their text model, whose config.json
they have in `text_config`.
"""
TORCH_DTYPES = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float64": "fp64",
    "auto": "fp32",
}


def parse_config(
    config: Mapping[str, Any], *, name: str = "", source: str = "config.json"
) -> ModelSpec:
    """Return the ModelSpec of a config.json.

    Raises UnknownFamily for a `model_type` that is not in FAMILIES, otherwise
    SpecInvalid with every invalid field. Linear in the number of layers, which is
    bounded.
    """
    check_size(config)
    whole = config
    notes: tuple[str, ...] = ()
    given = config.get("model_type")
    if isinstance(given, str) and given in TEXT_MODELS:
        config, notes = _text_model(config)
    else:
        config, notes = _read_as_class(config)
    fields = ConfigFields(config)
    family = fields.word("model_type")
    reader = FAMILIES.get(family)
    if reader is None and not fields.problems:
        raise UnknownFamily(family, sorted(FAMILIES))
    given = fields.word("dtype", "torch_dtype", default="float32")
    dtype = TORCH_DTYPES.get(given.removeprefix("torch."))
    fields.require(
        "torch_dtype",
        dtype is not None,
        sentence("'{given}' is not known", given=given[:40]),
    )
    if reader is None or dtype is None:
        fields.finish()
        raise UnknownFamily(family, sorted(FAMILIES))
    _check_class(fields, family)
    label = name or fields.word("_name_or_path", "name_or_path") or family
    spec = reader(fields, DTYPE_BYTES[dtype])
    fields.finish()
    notes += spec.notes
    if not fields.wholes and source == "config.json":
        notes += (
            sentence(
                "The config.json has no size, so every size is the default of "
                "{family}: {count} parameters.",
                family=family,
                count=f"{spec.parameter_count:,}",
            ),
        )
    made = replace(
        spec,
        family=family,
        name=label[:120],
        dtype=dtype,
        source=source,
        notes=notes,
    )
    scheme = read_quantization(whole)
    if scheme is not None:
        made = quantized(made, scheme)
    check(made)
    return made


def _text_model(
    config: Mapping[str, Any],
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return (the config of the text model inside a config.json, the note about it).

    Dtype and name are those of the whole model if the text model has none. Raises
    SpecInvalid.
    """
    inner = config.get("text_config")
    if inner is None:
        inner = {}
    if not isinstance(inner, Mapping):
        raise SpecInvalid({"text_config": sentence("must be a JSON object")})
    names = ("dtype", "torch_dtype", "_name_or_path")
    outer = {
        name: config[name]
        for name in names
        if inner.get(name) is None and name in config
    }
    family = {"model_type": TEXT_MODELS[config["model_type"]]}
    note = sentence(
        "Only the text model is counted, as AutoModelForCausalLM loads it. The image "
        "encoder is not."
    )
    return {**inner, **outer, **family}, (note,)


def _read_as_class(
    config: Mapping[str, Any],
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return (a config.json with a known family, the note about it).

    Some publishers give their model a name of their own and run another family's class,
    as Kimi K2 does with DeepSeek 3. Other configs are returned unchanged.
    """
    named, classes = config.get("model_type"), config.get("architectures")
    if not isinstance(named, str) or named in FAMILIES:
        return config, ()
    name = classes[0] if isinstance(classes, list) and classes else None
    if not isinstance(name, str):
        return config, ()
    plain = {key.replace("_", "").replace("-", ""): key for key in FAMILIES}
    for suffix in _SUFFIXES:
        family = plain.get(name.removesuffix(suffix).lower())
        if family and name.endswith(suffix):
            note = sentence(
                "The family {named} is read as {family}, whose class its config.json "
                "names.",
                named=named[:40],
                family=family,
            )
            return {**config, "model_type": family}, (note,)
    return config, ()


_ENCODERS = (
    "bert",
    "distilbert",
    "electra",
    "roberta",
    "vit",
    "xlm-roberta",
    "whisper",
)
_SUFFIXES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


def _check_class(fields: ConfigFields, family: str) -> None:
    """Raise UnknownHead if a decoder's config is for an unusual class.

    A reward model, for example, has no logits. Encoders read their heads themselves.
    """
    given = fields.peek("architectures")
    name = given[0] if isinstance(given, list) and given else ""
    if family in _ENCODERS or not isinstance(name, str) or not name:
        return
    if not name.endswith(_SUFFIXES):
        raise UnknownHead(family, sentence("as {name}", name=name))

"""Parse a Hugging Face config.json into a ModelSpec, in microseconds, building nothing.

Which families: see FAMILIES at the end. The defaults are those of transformers 5.23's
config classes, because a config.json leaves out what equals the default. Counts are
exact to the element; tests compare them with the real classes' published counts.
"""

from collections.abc import Callable, Mapping
from typing import Any

from placement.domain.config import Fields, check_size
from placement.domain.errors import UnknownFamily
from placement.domain.families_decoder import (
    bloom,
    falcon,
    gpt2,
    gpt_neox,
    opt,
    phi,
)
from placement.domain.families_encoder import bert, roberta, t5, vit
from placement.domain.families_llama import (
    gemma,
    gemma2,
    llama,
    mistral,
    mixtral,
    qwen2,
    qwen3,
)
from placement.domain.spec import DTYPE_BYTES, ModelSpec, check

Reader = Callable[[Fields, float], ModelSpec]
FAMILIES: dict[str, Reader] = {
    "bert": bert,
    "bloom": bloom,
    "falcon": falcon,
    "gemma": gemma,
    "gemma2": gemma2,
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "llama": llama,
    "mistral": mistral,
    "mixtral": mixtral,
    "opt": opt,
    "phi": phi,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "roberta": roberta,
    "t5": t5,
    "vit": vit,
}
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
    """The ModelSpec of a config.json.

    Raises UnknownFamily for a `model_type` that is not in FAMILIES, SpecInvalid with
    every wrong field otherwise. Linear in the number of layers, which is bounded.
    """
    check_size(config)
    fields = Fields(config)
    family = fields.word("model_type")
    reader = FAMILIES.get(family)
    if reader is None and not fields.problems:
        raise UnknownFamily(family, sorted(FAMILIES))
    given = fields.word("dtype", "torch_dtype", default="float32")
    dtype = TORCH_DTYPES.get(given.removeprefix("torch."))
    fields.must("torch_dtype", dtype is not None, f"'{given[:40]}' is not known")
    if reader is None or dtype is None:
        fields.finish()
        raise UnknownFamily(family, sorted(FAMILIES))
    label = name or fields.word("_name_or_path", "name_or_path") or family
    spec = reader(fields, DTYPE_BYTES[dtype])
    fields.finish()
    made = ModelSpec(
        family=family,
        name=label[:120],
        head=spec.head,
        layers=spec.layers,
        shape=spec.shape,
        dtype=dtype,
        source=source,
        tied_groups=spec.tied_groups,
    )
    check(made)
    return made

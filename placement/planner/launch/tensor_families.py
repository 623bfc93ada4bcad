"""Families of Hugging Face models whose layers the recipes can cut over GPUs.

The recipes cut by the tensor-parallel plans of transformers, or by their own plan where
a family has none. The portal knows the families without importing transformers. The
node checks again by the model itself.
"""

from telemetry.protocol.sentences import sentence

TENSOR_FAMILIES = frozenset(
    {
        *("bloom", "gemma", "gemma2", "gemma3_text", "glm4", "glm4_moe", "gpt2"),
        *("gpt_neox", "granite", "llama", "mistral", "mixtral", "olmo", "olmo2"),
        *("olmoe", "opt", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3"),
        *("qwen3_moe", "smollm3", "starcoder2"),
    }
)
"""Values of ``model_type``. Gradients of each were compared with those of one process.
"""
IMAGE_FAMILIES = frozenset({"deit", "vit"})
"""Image classifiers that can be cut."""
WHOLE_SEQUENCES = frozenset({"bloom", "opt"})
"""Families whose blocks compute on the tokens of all sequences in one dimension, or add
residuals within the layers that are cut."""


def why_not_tensor(
    family: str, heads: int, kv_heads: int, width: int, *, along: bool = False
) -> str:
    """Return why a recipe cannot cut the layers of a model; "": it can.

    Args:
        family: ``model_type`` of its config.json.
        heads, kv_heads: of one layer.
        width: GPUs that share every layer.
        along: they also share the sequence between the layers.
    """
    if family not in TENSOR_FAMILIES | IMAGE_FAMILIES:
        return sentence(
            "there is no tensor-parallel plan of the family {family} that the recipe "
            "can train",
            family=family[:40],
        )
    if along and (why := why_not_sequences(family)):
        return why
    return why_not_heads(heads, kv_heads, width)


def why_not_sequences(family: str) -> str:
    """Return why a recipe cannot cut the sequences of a model; "": it can.

    >>> why_not_sequences("llama")
    ''
    """
    if family not in WHOLE_SEQUENCES:
        return ""
    return sentence(
        "the recipe cannot cut the sequences of models of the family {family} between "
        "the layers",
        family=family[:40],
    )


def why_not_heads(heads: int, kv_heads: int, width: int) -> str:
    """Return why heads cannot be shared evenly; "": they can.

    >>> why_not_heads(32, 8, 4)
    ''
    """
    if heads % width or kv_heads % width:
        return sentence(
            "{width} GPUs share every layer, so {width} must divide the {heads} heads "
            "and the {kv_heads} key/value heads",
            width=width,
            heads=heads,
            kv_heads=kv_heads,
        )
    return ""

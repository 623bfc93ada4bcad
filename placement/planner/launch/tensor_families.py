"""Families of Hugging Face models whose layers the recipes can cut over GPUs.

The recipes cut by the tensor-parallel plans of transformers, or by their own plan where
a family has none. The portal knows the families without importing transformers. The
node checks again by the model itself.
"""

from telemetry.protocol.sentences import sentence

TENSOR_FAMILIES = frozenset(
    {
        *("gemma", "gemma2", "gemma3_text", "glm4", "glm4_moe", "gpt2", "gpt_neox"),
        *("granite", "llama"),
        *("mistral", "mixtral", "olmo", "olmo2", "olmoe", "phi", "phi3"),
        *("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "starcoder2"),
    }
)
"""Values of ``model_type``. Gradients of each were compared with those of one process.
"""


def why_not_tensor(family: str, heads: int, kv_heads: int, width: int) -> str:
    """Return why a recipe cannot cut the layers of a model; "": it can.

    Args:
        family: ``model_type`` of its config.json.
        heads, kv_heads: of one layer.
        width: GPUs that share every layer.
    """
    if family not in TENSOR_FAMILIES:
        return sentence(
            "transformers has no tensor-parallel plan of the family {family} that the "
            "recipe can train",
            family=family[:40],
        )
    return why_not_heads(heads, kv_heads, width)


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

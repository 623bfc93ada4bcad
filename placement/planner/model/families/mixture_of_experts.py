"""Readers for decoders with experts: Mixtral, Qwen MoE, OLMoE, DeepSeek, GLM, gpt-oss,
Llama 4.

Each token uses a few experts. All of them are in memory. Since transformers 5 the
experts of a block are two tensors, (experts, 2 x inner, hidden) and (experts, hidden,
inner), regardless of the form in the checkpoint.
"""

from collections.abc import Callable
from typing import Any

from placement.planner.model.config_reader import ConfigFields
from placement.planner.model.families.config_fields import (
    MAX_BLOCKS,
    MAX_POSITIONS,
    blocks,
)
from placement.planner.model.families.llama import LlamaFamily
from telemetry.protocol.sentences import sentence

MAX_EXPERTS = 4096


def read_experts(
    *names: str, default: int, chosen: int
) -> Callable[[ConfigFields], dict[str, Any]]:
    """Return a reader of the number of experts, of which each token uses a few.

    Args:
        names: of the field with the number of experts.
        chosen: default of the experts per token.
    """

    def read(fields: ConfigFields) -> dict[str, Any]:
        experts = fields.whole(*names, default=default, high=MAX_EXPERTS)
        taken = fields.whole("num_experts_per_tok", default=chosen, high=MAX_EXPERTS)
        fields.require(
            "num_experts_per_tok",
            taken <= experts,
            sentence(
                "{per_token} experts per token of {experts}",
                per_token=taken,
                experts=experts,
            ),
        )
        return {"experts": experts, "experts_per_token": min(taken, experts)}

    return read


def _sparse(fields: ConfigFields, count: int) -> list[int]:
    """Return the blocks without experts in Qwen's form: all but every n-th, and those
    listed.
    """
    step = fields.whole("decoder_sparse_step", default=1, high=MAX_BLOCKS)
    listed = _block_numbers(fields, "mlp_only_layers") or []
    return [i for i in range(count) if i in listed or (i + 1) % step]


def _block_numbers(fields: ConfigFields, name: str) -> list[int] | None:
    """Return a list of block numbers; None if config.json has none."""
    given = fields.peek(name)
    is_list = isinstance(given, list) and all(type(i) is int for i in given)
    fields.require(
        name, given is None or is_list, sentence("must be a list of block numbers")
    )
    return given if is_list else None


def _qwen(
    experts: int, chosen: int, inner: int, shared: int = 0
) -> Callable[[ConfigFields], dict[str, Any]]:
    """Return a reader of Qwen's experts.

    Args:
        inner: width of an expert.
        shared: width of the MLP that every token uses; 0: no such MLP.
    """
    routed = read_experts(
        "num_experts", "num_local_experts", default=experts, chosen=chosen
    )

    def read(fields: ConfigFields) -> dict[str, Any]:
        found = routed(fields)
        count = blocks(fields, "num_hidden_layers", default=24)
        found["plain_blocks"] = _sparse(fields, count)
        found["expert_intermediate"] = fields.whole(
            "moe_intermediate_size", default=inner, high=2**21
        )
        if shared:
            found["shared_gate"] = True
            found["shared_intermediate"] = fields.whole(
                "shared_expert_intermediate_size", default=shared, high=2**21
            )
        return found

    return read


def _deepseek(
    routed: Callable[[ConfigFields], dict[str, Any]],
    *,
    shared: int,
    inner: int,
    dense: int,
    count: int,
) -> Callable[[ConfigFields], dict[str, Any]]:
    """Return a reader of latent attention (arXiv:2405.04434) and of experts.

    Args:
        shared: experts that every token uses.
        inner: width of an expert.
        dense: blocks at the beginning that have no experts.
        count: blocks.
    """

    def read(fields: ConfigFields) -> dict[str, Any]:
        found = routed(fields)
        rope = fields.whole("qk_rope_head_dim", default=64, high=2**16)
        plain = fields.whole("qk_nope_head_dim", default=128, high=2**16)
        latent_query = fields.whole("q_lora_rank", default=1536, high=2**18)
        expert = fields.whole("moe_intermediate_size", default=inner, high=2**21)
        first = fields.whole(
            "first_k_dense_replace", default=dense, low=0, high=MAX_BLOCKS
        )
        last = blocks(fields, "num_hidden_layers", default=count)
        every = fields.whole("n_shared_experts", default=shared, high=MAX_EXPERTS)
        return {
            **found,
            "plain_blocks": range(min(first, last)),
            "head_dim": rope + plain,
            "rope_dim": rope,
            "value_dim": fields.whole("v_head_dim", default=128, high=2**16),
            "latent_kv": fields.whole("kv_lora_rank", default=512, high=2**18),
            # DeepSeek 2 Lite has no latent for the queries; the field is null.
            "latent_query": 0 if fields.is_null("q_lora_rank") else latent_query,
            "expert_intermediate": expert,
            "shared_intermediate": expert * every,
        }

    return read


def _glm4(fields: ConfigFields) -> dict[str, Any]:
    """Return the fields of GLM's experts, with DeepSeek's names and usual heads."""
    inner = fields.whole("moe_intermediate_size", default=1408, high=2**21)
    every = fields.whole("n_shared_experts", default=1, high=MAX_EXPERTS)
    dense = fields.whole("first_k_dense_replace", default=1, low=0, high=MAX_BLOCKS)
    count = blocks(fields, "num_hidden_layers", default=46)
    ratio = fields.ratio("partial_rotary_factor", default=0.5)
    names = ("n_routed_experts", "num_local_experts")
    routed = read_experts(*names, default=128, chosen=8)
    return {
        **routed(fields),
        "plain_blocks": range(min(dense, count)),
        "expert_intermediate": inner,
        "shared_intermediate": inner * every,
        "rotary": "full" if ratio == 1.0 else "partial",
        "rotary_ratio": ratio,
        "qk_norm": fields.flag("use_qk_norm", default=False),
    }


def _llama4(fields: ConfigFields) -> dict[str, Any]:
    """Return the fields of Llama 4's text model.

    Every n-th block has experts. Three blocks of four attend inside chunks of tokens.
    """
    count = blocks(fields, "num_hidden_layers", default=48)
    step = fields.whole("interleave_moe_layer_step", default=1, high=MAX_BLOCKS)
    listed = _block_numbers(fields, "moe_layers")
    routed = range(step - 1, count, step) if listed is None else listed
    chunk = fields.whole("attention_chunk_size", default=8192, high=MAX_POSITIONS)
    if fields.is_null("attention_chunk_size"):
        chunk = 0
    chunked = _rotated(fields, count) if chunk else 0
    inner = fields.whole("intermediate_size", default=8192, high=2**21)
    return {
        **read_experts("num_local_experts", default=16, chosen=1)(fields),
        "plain_blocks": set(range(count)).difference(routed),
        "intermediate": fields.whole(
            "intermediate_size_mlp", default=16384, high=2**21
        ),
        "expert_intermediate": inner,
        "shared_intermediate": inner,
        "qk_unit": fields.flag("use_qk_norm", default=True),
        "sliding_window": chunk if chunked else 0,
        "sliding_blocks": chunked,
    }


def _rotated(fields: ConfigFields, count: int) -> int:
    """Return the number of Llama 4's blocks with rotary positions, which attend inside
    chunks.
    """
    rotated = fields.peek("no_rope_layers")
    every = fields.whole("no_rope_layer_interval", default=4, high=MAX_BLOCKS)
    if not rotated:
        return count - count // every
    fields.require(
        "no_rope_layers",
        isinstance(rotated, list)
        and len(rotated) >= count
        and all(type(one) is int for one in rotated),
        sentence("must be a list with a 0 or a 1 for each block"),
    )
    if "no_rope_layers" in fields.problems:
        return 0
    return sum(map(bool, rotated[:count]))


EXPERT_FAMILIES: dict[str, LlamaFamily] = {
    "deepseek_v2": LlamaFamily(
        vocab=102400,
        read=_deepseek(
            read_experts("n_routed_experts", default=64, chosen=1),
            shared=2,
            inner=1407,
            dense=0,
            count=32,
        ),
    ),
    # DeepSeek 3 and R1, without the blocks for predicting several tokens ahead.
    "deepseek_v3": LlamaFamily(
        vocab=129280,
        hidden=7168,
        intermediate=18432,
        blocks=61,
        heads=128,
        positions=4096,
        read=_deepseek(
            read_experts(
                "n_routed_experts", "num_local_experts", default=256, chosen=8
            ),
            shared=1,
            inner=2048,
            dense=3,
            count=61,
        ),
    ),
    # GLM 4.5 to 4.7, without the blocks for predicting several tokens ahead.
    "glm4_moe": LlamaFamily(
        vocab=151552,
        intermediate=10944,
        blocks=46,
        heads=96,
        kv_heads=8,
        positions=131072,
        out_bias=False,
        read=_glm4,
    ),
    # gpt-oss: trained sinks in attention, biased experts behind a clamped gate.
    "gpt_oss": LlamaFamily(
        vocab=201088,
        hidden=2880,
        intermediate=2880,
        blocks=36,
        heads=64,
        kv_heads=8,
        head_dim=64,
        positions=131072,
        attention_bias=True,
        window=128,
        full_every=2,
        shape={
            "sinks": True,
            "expert_biases": True,
            "clamped_gate": True,
            "softmax_fp32": False,
        },
        read=read_experts("num_local_experts", "num_experts", default=128, chosen=4),
    ),
    # The text model of Llama 4: one expert for a token beside a shared one, in all
    # blocks (Scout) or in every other one (Maverick).
    "llama4_text": LlamaFamily(
        vocab=202048,
        hidden=5120,
        blocks=48,
        heads=40,
        kv_heads=8,
        head_dim=128,
        positions=131072,
        shape={"rotary": "complex", "every_expert": True, "softmax_fp32": False},
        read=_llama4,
    ),
    # Mistral with experts.
    "mixtral": LlamaFamily(
        intermediate=14336,
        kv_heads=8,
        positions=131072,
        read=read_experts("num_local_experts", "num_experts", default=8, chosen=2),
    ),
    # Many small experts, norms on queries and keys as a whole.
    "olmoe": LlamaFamily(
        vocab=50304,
        hidden=2048,
        intermediate=2048,
        blocks=16,
        heads=16,
        positions=4096,
        shape={"qk_norm": True, "qk_norm_whole": True},
        read=read_experts("num_experts", "num_local_experts", default=64, chosen=8),
    ),
    # Qwen 1.5 and 2 MoE: experts, and a gated MLP that every token uses.
    "qwen2_moe": LlamaFamily(
        vocab=151936,
        hidden=2048,
        intermediate=5632,
        blocks=24,
        heads=16,
        kv_heads=16,
        positions=32768,
        qkv_bias=True,
        window=4096,
        window_flag="use_sliding_window",
        read=_qwen(60, 4, inner=1408, shared=5632),
    ),
    # Qwen 3 MoE: many small experts, norms on each query and key head.
    "qwen3_moe": LlamaFamily(
        vocab=151936,
        hidden=2048,
        intermediate=6144,
        blocks=24,
        kv_heads=4,
        positions=32768,
        window=4096,
        window_flag="use_sliding_window",
        shape={"qk_norm": True},
        read=_qwen(128, 8, inner=768),
    ),
}

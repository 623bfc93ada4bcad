"""Readers for decoders with experts: Mixtral, Qwen MoE, OLMoE, DeepSeek 2 and 3.

Each token runs through a few experts; all of them are in memory. Since transformers 5
the experts of a block are two tensors, (experts, 2 x inner, hidden) and (experts,
hidden, inner), however the checkpoint stores them.
"""

from placement.planner.model.config_reader import Fields
from placement.planner.model.families.config_fields import MAX_BLOCKS
from placement.planner.model.families.llama import LlamaDefaults, read_llama
from placement.planner.model.spec import ModelSpec
from telemetry.protocol.sentences import sentence

MAX_EXPERTS = 4096


def _experts(fields: Fields, *names: str, default: int, chosen: int) -> tuple[int, int]:
    """(experts, experts per token)."""
    experts = fields.whole(*names, default=default, high=MAX_EXPERTS)
    per_token = fields.whole("num_experts_per_tok", default=chosen, high=MAX_EXPERTS)
    fields.must(
        "num_experts_per_tok",
        per_token <= experts,
        sentence(
            "{per_token} experts per token of {experts}",
            per_token=per_token,
            experts=experts,
        ),
    )
    return experts, min(per_token, experts)


def _block_count(fields: Fields, default: int) -> int:
    return fields.whole("num_hidden_layers", default=default, high=MAX_BLOCKS)


def _sparse(fields: Fields, count: int) -> list[int]:
    """Blocks without experts, as Qwen says it: all but every n-th, and those listed."""
    step = fields.whole("decoder_sparse_step", default=1, high=MAX_BLOCKS)
    given = fields.peek("mlp_only_layers")
    listed = given if isinstance(given, list) else []
    fields.must(
        "mlp_only_layers",
        given is None
        or (isinstance(given, list) and all(type(i) is int for i in given)),
        sentence("must be a list of block numbers"),
    )
    return [i for i in range(count) if i in listed or (i + 1) % step]


def mixtral(fields: Fields, width: float) -> ModelSpec:
    """Mixtral: Mistral with experts."""
    experts, chosen = _experts(
        fields, "num_local_experts", "num_experts", default=8, chosen=2
    )
    return read_llama(
        fields,
        width,
        LlamaDefaults(intermediate=14336, kv_heads=8, positions=131072),
        experts=experts,
        experts_per_token=chosen,
    )


def olmoe(fields: Fields, width: float) -> ModelSpec:
    """OLMoE: many small experts, norms on queries and keys as a whole."""
    experts, chosen = _experts(
        fields, "num_experts", "num_local_experts", default=64, chosen=8
    )
    defaults = LlamaDefaults(
        vocab=50304,
        hidden=2048,
        intermediate=2048,
        blocks=16,
        heads=16,
        positions=4096,
    )
    return read_llama(
        fields,
        width,
        defaults,
        experts=experts,
        experts_per_token=chosen,
        qk_norm=True,
        qk_norm_whole=True,
    )


def qwen2_moe(fields: Fields, width: float) -> ModelSpec:
    """Qwen 1.5 and 2 MoE: experts, and a gated MLP that every token takes."""
    experts, chosen = _experts(
        fields, "num_experts", "num_local_experts", default=60, chosen=4
    )
    defaults = LlamaDefaults(
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
    )
    return read_llama(
        fields,
        width,
        defaults,
        plain_blocks=_sparse(fields, _block_count(fields, 24)),
        experts=experts,
        experts_per_token=chosen,
        expert_intermediate=fields.whole(
            "moe_intermediate_size", default=1408, high=2**21
        ),
        shared_intermediate=fields.whole(
            "shared_expert_intermediate_size", default=5632, high=2**21
        ),
        shared_gate=True,
    )


def qwen3_moe(fields: Fields, width: float) -> ModelSpec:
    """Qwen 3 MoE: many small experts, norms on each query and key head."""
    experts, chosen = _experts(
        fields, "num_experts", "num_local_experts", default=128, chosen=8
    )
    defaults = LlamaDefaults(
        vocab=151936,
        hidden=2048,
        intermediate=6144,
        blocks=24,
        heads=32,
        kv_heads=4,
        positions=32768,
        window=4096,
        window_flag="use_sliding_window",
    )
    return read_llama(
        fields,
        width,
        defaults,
        plain_blocks=_sparse(fields, _block_count(fields, 24)),
        experts=experts,
        experts_per_token=chosen,
        expert_intermediate=fields.whole(
            "moe_intermediate_size", default=768, high=2**21
        ),
        qk_norm=True,
    )


def _deepseek(
    fields: Fields,
    width: float,
    defaults: LlamaDefaults,
    *,
    experts: tuple[int, int],
    shared: int,
    inner: int,
    dense: int,
) -> ModelSpec:
    """Latent attention (arXiv:2405.04434), dense blocks first, then experts."""
    rope = fields.whole("qk_rope_head_dim", default=64, high=2**16)
    plain = fields.whole("qk_nope_head_dim", default=128, high=2**16)
    latent_query = fields.whole("q_lora_rank", default=1536, high=2**18)
    if fields.is_null("q_lora_rank"):
        latent_query = 0
    expert = fields.whole("moe_intermediate_size", default=inner, high=2**21)
    count = _block_count(fields, defaults.blocks)
    first = fields.whole("first_k_dense_replace", default=dense, low=0, high=MAX_BLOCKS)
    return read_llama(
        fields,
        width,
        defaults,
        plain_blocks=range(min(first, count)),
        head_dim=rope + plain,
        rope_dim=rope,
        value_dim=fields.whole("v_head_dim", default=128, high=2**16),
        latent_kv=fields.whole("kv_lora_rank", default=512, high=2**18),
        latent_query=latent_query,
        experts=experts[0],
        experts_per_token=experts[1],
        expert_intermediate=expert,
        shared_intermediate=expert
        * fields.whole("n_shared_experts", default=shared, high=MAX_EXPERTS),
    )


def deepseek_v2(fields: Fields, width: float) -> ModelSpec:
    """DeepSeek 2 and its Lite (which has no latent for the queries)."""
    defaults = LlamaDefaults(vocab=102400, positions=2048)
    return _deepseek(
        fields,
        width,
        defaults,
        experts=_experts(fields, "n_routed_experts", default=64, chosen=1),
        shared=2,
        inner=1407,
        dense=0,
    )


def deepseek_v3(fields: Fields, width: float) -> ModelSpec:
    """DeepSeek 3 and R1; without the blocks for predicting several tokens ahead."""
    defaults = LlamaDefaults(
        vocab=129280,
        hidden=7168,
        intermediate=18432,
        blocks=61,
        heads=128,
        positions=4096,
    )
    return _deepseek(
        fields,
        width,
        defaults,
        experts=_experts(
            fields, "n_routed_experts", "num_local_experts", default=256, chosen=8
        ),
        shared=1,
        inner=2048,
        dense=3,
    )

"""Small configurations of every family with sizes drawn from a seed, for test_exact."""

import random
from collections import Counter


def products(spec):
    """Count the linear layers of the blocks, by name and sizes."""
    found: Counter[str] = Counter()
    for layer in spec.layers:
        if layer.kind not in ("embedding", "head"):
            for part in layer.parts:
                for one in part.linears:
                    found[f"{one.name} {one.outputs}x{one.inputs}"] += one.copies
    return dict(sorted(found.items()))


def heads(draw):
    """(hidden, heads, kv heads): sizes that divide."""
    kv = draw.choice([1, 2, 4])
    many = kv * draw.choice([1, 2, 3])
    return many * draw.choice([8, 12, 16]), many, kv


def llama_like(draw, **more):
    hidden, many, kv = heads(draw)
    return {
        "hidden_size": hidden,
        "num_attention_heads": many,
        "num_key_value_heads": kv,
        "intermediate_size": draw.randrange(16, 200),
        "num_hidden_layers": draw.randrange(1, 5),
        "vocab_size": draw.randrange(50, 400),
        "max_position_embeddings": draw.randrange(16, 100),
        "tie_word_embeddings": draw.random() < 0.5,
        "pad_token_id": 0,
        **more,
    }


def experts(draw, name="num_experts"):
    return {name: draw.choice([4, 6, 8]), "num_experts_per_tok": draw.choice([1, 2])}


def encoder_like(draw, name):
    hidden, many, _ = heads(draw)
    head = draw.choice(["ForMaskedLM", "ForSequenceClassification", "Model"])
    count = draw.randrange(2, 7)
    return {
        "architectures": [f"{name}{head}"],
        "hidden_size": hidden,
        "num_attention_heads": many,
        "intermediate_size": draw.randrange(16, 200),
        "num_hidden_layers": draw.randrange(1, 4),
        "vocab_size": draw.randrange(50, 400),
        "max_position_embeddings": draw.randrange(16, 100),
        "type_vocab_size": draw.randrange(1, 4),
        "id2label": {str(i): str(i) for i in range(count)},
        "tie_word_embeddings": draw.random() < 0.7,
        "pad_token_id": 0,
    }


def gpt_like(draw, **more):
    hidden, many, _ = heads(draw)
    return {
        "n_embd": hidden,
        "n_head": many,
        "n_layer": draw.randrange(1, 4),
        "n_positions": draw.randrange(16, 100),
        "vocab_size": draw.randrange(50, 400),
        "n_inner": draw.choice([None, draw.randrange(16, 200)]),
        "tie_word_embeddings": draw.random() < 0.7,
        **more,
    }


def opt(draw):
    config = llama_like(draw)
    config["ffn_dim"] = config.pop("intermediate_size")
    narrow = draw.random() < 0.5
    return {
        **config,
        "word_embed_proj_dim": 24 if narrow else config["hidden_size"],
        "do_layer_norm_before": draw.random() < 0.6,
        "enable_bias": draw.random() < 0.6,
        "layer_norm_elementwise_affine": draw.random() < 0.6,
    }


def bloom(draw):
    hidden, many, _ = heads(draw)
    return {
        "hidden_size": hidden,
        "n_head": many,
        "n_layer": draw.randrange(1, 4),
        "vocab_size": draw.randrange(50, 400),
        "tie_word_embeddings": draw.random() < 0.7,
    }


def falcon(draw):
    config = llama_like(draw)
    config["num_kv_heads"] = config.pop("num_key_value_heads")
    return {
        **config,
        "new_decoder_architecture": draw.random() < 0.5,
        "multi_query": draw.random() < 0.5,
        "parallel_attn": draw.random() < 0.5,
        "bias": draw.random() < 0.5,
        "alibi": draw.random() < 0.5,
        "num_ln_in_parallel_attn": draw.choice([None, 1, 2]),
        "ffn_hidden_size": draw.choice([None, 100]),
    }


def gpt_neox(draw):
    return llama_like(
        draw,
        use_parallel_residual=draw.random() < 0.5,
        attention_bias=draw.random() < 0.5,
    )


def grouped_experts(draw):
    """Fields of DeepSeek's and GLM's experts."""
    return {
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "n_shared_experts": draw.choice([1, 2]),
        "moe_intermediate_size": draw.randrange(8, 40),
        "first_k_dense_replace": draw.randrange(0, 3),
    }


def deepseek(draw, version):
    config = llama_like(
        draw,
        attention_bias=draw.random() < 0.5,
        **grouped_experts(draw),
        kv_lora_rank=draw.choice([8, 12]),
        q_lora_rank=draw.choice([None, 16]),
        qk_rope_head_dim=draw.choice([4, 8]),
        qk_nope_head_dim=draw.choice([8, 12]),
        v_head_dim=draw.choice([8, 16]),
    )
    config["num_key_value_heads"] = config["num_attention_heads"]
    return config


def glm4_moe(draw):
    return llama_like(
        draw,
        attention_bias=draw.random() < 0.5,
        head_dim=draw.choice([8, 12]),
        **grouped_experts(draw),
        use_qk_norm=draw.random() < 0.5,
    )


def qwen_moe(draw):
    layers = draw.randrange(2, 6)
    return llama_like(
        draw,
        **experts(draw),
        num_hidden_layers=layers,
        moe_intermediate_size=draw.randrange(8, 40),
        shared_expert_intermediate_size=draw.randrange(8, 60),
        decoder_sparse_step=draw.choice([1, 2, 3]),
        mlp_only_layers=draw.choice([None, [], [0], [1, 3]]),
        use_sliding_window=draw.random() < 0.5,
        max_window_layers=1,
    )


def llama4(draw):
    layers = draw.randrange(2, 6)
    return llama_like(
        draw,
        head_dim=8,
        num_hidden_layers=layers,
        intermediate_size_mlp=draw.randrange(16, 90),
        attention_bias=draw.random() < 0.5,
        num_local_experts=draw.choice([4, 6]),
        interleave_moe_layer_step=draw.choice([1, 2, 3]),
        moe_layers=draw.choice([None, [0], [1, layers - 1]]),
        no_rope_layers=draw.choice([[], [1, 0, 1, 1, 0][:layers]]),
    )


def jamba(draw):
    period = draw.choice([2, 3])
    return llama_like(
        draw,
        **experts(draw),
        num_hidden_layers=draw.randrange(2, 6),
        attn_layer_period=period,
        attn_layer_offset=draw.randrange(period),
        expert_layer_period=period,
        expert_layer_offset=draw.randrange(period),
        mamba_dt_rank=draw.choice(["auto", 5]),
        mamba_d_state=draw.choice([4, 6]),
        mamba_expand=draw.choice([1, 2]),
        mamba_conv_bias=draw.random() < 0.5,
        mamba_proj_bias=draw.random() < 0.5,
    )


def mamba_like(draw, **more):
    return {
        "hidden_size": draw.choice([16, 24, 32]),
        "num_hidden_layers": draw.randrange(1, 5),
        "vocab_size": draw.randrange(50, 400),
        "state_size": draw.choice([4, 6]),
        "conv_kernel": draw.choice([2, 4]),
        "expand": draw.choice([1, 2]),
        "use_bias": draw.random() < 0.5,
        "use_conv_bias": draw.random() < 0.5,
        "tie_word_embeddings": draw.random() < 0.5,
        "pad_token_id": 0,
        **more,
    }


def mamba(draw):
    return mamba_like(draw, time_step_rank=draw.choice(["auto", 5]))


def mamba2(draw):
    config = mamba_like(draw)
    many = config["hidden_size"] * config["expand"] // 8
    groups = draw.choice([1, 2]) if many % 2 == 0 else 1
    return {**config, "head_dim": 8, "num_heads": many, "n_groups": groups}


def distilbert(draw):
    config = encoder_like(draw, "DistilBert")
    hidden = config.pop("hidden_size")
    return {
        **config,
        "dim": hidden,
        "n_heads": config.pop("num_attention_heads"),
        "n_layers": config.pop("num_hidden_layers"),
        "hidden_dim": config.pop("intermediate_size"),
    }


def t5(draw):
    return {
        "d_model": draw.choice([32, 48]),
        "num_heads": draw.choice([2, 4]),
        "d_kv": draw.choice([8, 12]),
        "d_ff": draw.randrange(16, 200),
        "num_layers": draw.randrange(1, 4),
        "num_decoder_layers": draw.choice([None, 1, 2]),
        "vocab_size": draw.randrange(50, 400),
        "feed_forward_proj": draw.choice(["relu", "gated-gelu"]),
        "relative_attention_num_buckets": draw.choice([8, 32]),
        "tie_word_embeddings": draw.random() < 0.5,
    }


def vit(draw):
    hidden, many, _ = heads(draw)
    kind = draw.choice(["ViTForImageClassification", "ViTModel"])
    return {
        "architectures": [kind],
        "hidden_size": hidden,
        "num_attention_heads": many,
        "intermediate_size": draw.randrange(16, 200),
        "num_hidden_layers": draw.randrange(1, 4),
        "image_size": 32,
        "patch_size": draw.choice([4, 8]),
        "num_channels": draw.choice([1, 3]),
        "qkv_bias": draw.random() < 0.5,
        "id2label": {str(i): str(i) for i in range(draw.randrange(2, 9))},
    }


def whisper(draw):
    hidden, many, _ = heads(draw)
    inner = draw.randrange(16, 200)
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "d_model": hidden,
        "encoder_attention_heads": many,
        "decoder_attention_heads": many,
        "encoder_ffn_dim": inner,
        "decoder_ffn_dim": inner,
        "encoder_layers": draw.randrange(1, 4),
        "decoder_layers": draw.randrange(1, 4),
        "vocab_size": draw.randrange(50, 400),
        "num_mel_bins": draw.choice([20, 80]),
        "max_source_positions": 50,
        "max_target_positions": 30,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    }


FAMILIES = {
    "bert": lambda draw: encoder_like(draw, "Bert"),
    "bloom": bloom,
    "deepseek_v2": lambda draw: deepseek(draw, 2),
    "deepseek_v3": lambda draw: deepseek(draw, 3),
    "distilbert": distilbert,
    "electra": lambda draw: {
        **encoder_like(draw, "Electra"),
        "embedding_size": draw.choice([16, 24]),
    },
    "falcon": falcon,
    "falcon_mamba": mamba,
    "gemma": lambda draw: llama_like(draw, head_dim=draw.choice([8, 12])),
    "gemma2": lambda draw: llama_like(draw, head_dim=draw.choice([8, 12])),
    "gemma3_text": lambda draw: llama_like(draw, head_dim=draw.choice([8, 12])),
    "glm4_moe": glm4_moe,
    "gpt2": gpt_like,
    "gpt_neox": gpt_neox,
    "gptj": lambda draw: gpt_like(draw, rotary_dim=4),
    "jamba": jamba,
    "llama": lambda draw: llama_like(
        draw,
        attention_bias=draw.random() < 0.5,
        mlp_bias=draw.random() < 0.5,
        head_dim=draw.choice([None, 8]),
    ),
    "llama4_text": llama4,
    "mamba": mamba,
    "mamba2": mamba2,
    "mistral": lambda draw: llama_like(draw, head_dim=draw.choice([None, 8])),
    "gpt_oss": lambda draw: llama_like(
        draw,
        head_dim=draw.choice([8, 12]),
        attention_bias=draw.random() < 0.5,
        **experts(draw, "num_local_experts"),
    ),
    "mixtral": lambda draw: llama_like(draw, **experts(draw, "num_local_experts")),
    "mt5": t5,
    "olmo2": lambda draw: llama_like(draw, attention_bias=draw.random() < 0.5),
    "olmoe": lambda draw: llama_like(draw, **experts(draw)),
    "opt": opt,
    "phi": lambda draw: llama_like(draw, qk_layernorm=draw.random() < 0.5),
    "phi3": llama_like,
    "qwen2": llama_like,
    "qwen2_moe": qwen_moe,
    "qwen3": lambda draw: llama_like(
        draw, head_dim=draw.choice([8, 12]), attention_bias=draw.random() < 0.5
    ),
    "qwen3_moe": lambda draw: {**qwen_moe(draw), "head_dim": draw.choice([8, 12])},
    "roberta": lambda draw: encoder_like(draw, "Roberta"),
    "smollm3": llama_like,
    "t5": t5,
    "vit": vit,
    "whisper": whisper,
    "xlm-roberta": lambda draw: encoder_like(draw, "XLMRoberta"),
}


def cases(each=2):
    """`each` configurations of every family, always the same."""
    draw = random.Random(5)
    for family, make in FAMILIES.items():
        for _ in range(each):
            yield {"model_type": family, **make(draw)}

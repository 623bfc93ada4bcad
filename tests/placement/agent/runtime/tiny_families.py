"""Tiny models of every known family, for comparisons of gradients."""

import torch

from placement.agent.runtime.fine_tune_worker import import_transformers
from placement.planner.launch.tensor_families import IMAGE_FAMILIES

WORDS = 13
"""Two ranks have unequal parts of the table."""
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "ffn_dim": 64,
    "dropout": 0.0,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
IMAGE_SIZES = {
    "image_size": 8,
    "patch_size": 4,
    "num_labels": WORDS,
    "architectures": ["DeiTForImageClassification"],
}
"""DeiT has several classes of classifiers."""
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
MIXTURES = ("glm4_moe", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe")


def model_of(family, **changes):
    transformers = import_transformers()
    torch.manual_seed(3)
    sizes = IMAGE_SIZES if family in IMAGE_FAMILIES else {}
    config = transformers.AutoConfig.for_model(family, **SIZES | sizes | changes)
    kind = transformers.AutoModelForCausalLM
    if sizes:
        kind = transformers.AutoModelForImageClassification
    model = kind.from_config(config).float()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    # They begin as zeros, with which it does not show if they are added twice.
    for name, param in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(param, std=0.02)
    return model

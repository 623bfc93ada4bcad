"""Rows of measured training steps, and extra cases without a measured twin."""

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[3] / "data" / "memory"
FILES = ("measured_cpu.json", "simulated_large.json", "followed_cases.json")
ROWS: list[dict[str, Any]] = [
    row for name in FILES for row in json.loads((DATA / name).read_text())["cases"]
]

LLAMA = {
    "model": {
        "hf_class": "LlamaForCausalLM",
        "config_class": "LlamaConfig",
        "config": {
            "hidden_size": 256,
            "intermediate_size": 688,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "vocab_size": 8000,
        },
    },
    "input": {"kind": "lm", "batch": 2, "seq": 512, "vocab": 8000},
    "precision": "bf16",
    "optimizer": {"name": "adamw"},
}
BERT = {
    "model": {
        "hf_class": "BertForMaskedLM",
        "config_class": "BertConfig",
        "config": {
            "hidden_size": 256,
            "intermediate_size": 1024,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "vocab_size": 8000,
        },
    },
    "input": {"kind": "mlm", "batch": 2, "seq": 512, "vocab": 8000},
    "precision": "fp32",
    "optimizer": {"name": "adamw"},
}
LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
EXTRAS: dict[str, dict[str, Any]] = {
    "flash": LLAMA | {"accelerator": "cuda", "attention": "flash"},
    "math": LLAMA | {"accelerator": "cuda", "attention": "math"},
    "math-checkpointed": LLAMA | {"attention": "math", "checkpointing": True},
    "untraced": next(
        row["spec"] | {"traced": False}
        for row in ROWS
        if row["spec"]["id"] == "sim-gpt2-fp32-adamw-b8-s1024-sdpa"
    ),
    "cpu": LLAMA,
    "8bit": LLAMA | {"optimizer": {"name": "adam8bit"}, "precision": "fp32"},
    "fused": LLAMA | {"optimizer": {"name": "adamw", "fused": True}},
    "ddp": LLAMA | {"ranks": 4},
    "infer": LLAMA | {"train": False},
    "rwkv": {
        "model": {
            "config": {
                "model_type": "rwkv",
                "hidden_size": 64,
                "attention_hidden_size": 64,
                "num_hidden_layers": 1,
                "vocab_size": 100,
            }
        },
        "input": {"kind": "lm", "batch": 1, "seq": 4, "vocab": 100},
        "precision": "fp32",
        "optimizer": {"name": "sgd"},
    },
    "mask-cpu": BERT,
    "mask-cuda": BERT | {"accelerator": "cuda"},
    "amp-cpu": BERT | {"precision": "autocast_bf16"},
    "amp-cuda": BERT | {"precision": "autocast_bf16", "accelerator": "cuda"},
    "lstm-cuda": {
        "model": {"torch": "CharLSTM", "args": {"hidden": 256}},
        "input": {"kind": "lm_plain", "batch": 4, "seq": 64, "vocab": 8000},
        "precision": "fp32",
        "optimizer": {"name": "adam"},
        "accelerator": "cuda",
    },
    "8b": {
        "model": {**LLAMA["model"], "config": LLAMA_8B},  # type: ignore[dict-item]
        "input": {"kind": "lm", "batch": 1, "seq": 4096, "vocab": 128256},
        "precision": "bf16",
        "optimizer": {"name": "adamw"},
        "checkpointing": True,
        "accelerator": "cuda",
    },
    "frozen": LLAMA | {"freeze": ["model."]},
    "nothing-left": LLAMA | {"freeze": ["model.", "lm_head"]},
    "no-such-layer": LLAMA | {"lora": {"rank": 4, "targets": ["nowhere"]}},
    "no-such-class": LLAMA | {"model": LLAMA["model"] | {"hf_class": "Nonsense"}},  # type: ignore[operator]
    "no-such-net": LLAMA | {"model": {"torch": "AlexNet"}},
}

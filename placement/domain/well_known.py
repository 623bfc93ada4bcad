"""A few well-known models, their configurations typed in by us; nothing downloaded.

Sizes are those of the models' public papers and cards. `tiny-gpt` is ours: a model
that the demo recipe can train on a laptop's CPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from placement.domain.errors import SpecInvalid
from placement.domain.families import parse_config
from placement.domain.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class WellKnown:
    """A configuration offered by name."""

    name: str
    title: str
    config: Mapping[str, Any]


def _llama(**sizes: Any) -> dict[str, Any]:
    return {"model_type": "llama", "dtype": "bfloat16", **sizes}


WELL_KNOWN: dict[str, WellKnown] = {
    known.name: known
    for known in (
        WellKnown(
            "tiny-gpt",
            "Tiny GPT, 10 M parameters: trains on a CPU",
            {
                "model_type": "gpt2",
                "n_embd": 320,
                "n_head": 5,
                "n_layer": 6,
                "n_positions": 512,
                "vocab_size": 8000,
                "attn_pdrop": 0.0,
                "resid_pdrop": 0.0,
                "embd_pdrop": 0.0,
            },
        ),
        WellKnown("gpt2", "GPT-2, 124 M", {"model_type": "gpt2"}),
        WellKnown(
            "gpt2-medium",
            "GPT-2 medium, 355 M",
            {"model_type": "gpt2", "n_embd": 1024, "n_head": 16, "n_layer": 24},
        ),
        WellKnown("bert-base", "BERT base, 110 M", {"model_type": "bert"}),
        WellKnown(
            "vit-base",
            "ViT base, 86 M, 224 px",
            {"model_type": "vit", "num_labels": 1000},
        ),
        WellKnown(
            "qwen2-0.5b",
            "Qwen2 0.5B, 494 M",
            {
                "model_type": "qwen2",
                "dtype": "bfloat16",
                "hidden_size": 896,
                "intermediate_size": 4864,
                "num_hidden_layers": 24,
                "num_attention_heads": 14,
                "num_key_value_heads": 2,
                "vocab_size": 151936,
                "max_position_embeddings": 131072,
                "tie_word_embeddings": True,
            },
        ),
        WellKnown(
            "llama-3.2-1b",
            "Llama 3.2 1B, 1.24 B",
            _llama(
                hidden_size=2048,
                intermediate_size=8192,
                num_hidden_layers=16,
                num_attention_heads=32,
                num_key_value_heads=8,
                vocab_size=128256,
                max_position_embeddings=131072,
                tie_word_embeddings=True,
            ),
        ),
        WellKnown(
            "mistral-7b",
            "Mistral 7B, 7.24 B",
            {
                "model_type": "mistral",
                "dtype": "bfloat16",
                "max_position_embeddings": 32768,
            },
        ),
        WellKnown(
            "llama-3-8b",
            "Llama 3 8B, 8.03 B",
            _llama(
                hidden_size=4096,
                intermediate_size=14336,
                num_hidden_layers=32,
                num_attention_heads=32,
                num_key_value_heads=8,
                vocab_size=128256,
                max_position_embeddings=8192,
            ),
        ),
    )
}


@cache
def well_known_spec(name: str) -> ModelSpec:
    """The ModelSpec of a well-known model. Raises SpecInvalid for another name."""
    if name not in WELL_KNOWN:
        raise SpecInvalid(
            {"name": f"'{name[:40]}' is not one of {', '.join(WELL_KNOWN)}"}
        )
    known = WELL_KNOWN[name]
    return parse_config(known.config, name=known.name, source="well-known")

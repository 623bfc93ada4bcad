"""A tiny random Llama in a folder, as Hugging Face stores it."""

import json
from pathlib import Path

WORDS = ("a", "b", "c", "d", "e", "f", "g", "h")
CONFIG = {
    "model_type": "llama",
    "vocab_size": 16,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def write_tiny_llama(folder: Path) -> Path:
    """Write config, weights, and a tokenizer with a chat template."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    given = {k: v for k, v in CONFIG.items() if k != "model_type"}
    LlamaForCausalLM(LlamaConfig(**given)).save_pretrained(folder)
    known = {"<s>": 0, "<u>": 1, **{word: n for n, word in enumerate(WORDS, 2)}}
    known |= {f"x{n}": n for n in range(len(known), CONFIG["vocab_size"])}
    words = Tokenizer(models.WordLevel(known, unk_token="<u>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", unk_token="<u>", pad_token="<s>"
    )
    tokenizer.chat_template = (
        "{% for one in messages %}{{ one['content'] }} {% endfor %}"
    )
    tokenizer.save_pretrained(folder)
    json.loads((folder / "config.json").read_text())
    return folder

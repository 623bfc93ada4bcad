"""Tiny models of real families for the tests of recipe ``fine-tune``.

    python -m tests.placement.agent.runtime.fine_tune_models make FOLDER
    python -m tests.placement.agent.runtime.fine_tune_models load FOLDER TOKENS LENGTH

``make`` writes the folders ``llama`` and ``gpt2`` with random weights and a tokenizer,
``qwen`` and ``mixtral`` with a config.json and a tokenizer, and ``data.txt``. ``load``
prints, of a trained model, the loss that transformers itself computes on the held-out
tokens, in blocks of LENGTH, and the sum of its weights.
"""

import json
import sys
from pathlib import Path

import torch
from peft import PeftConfig, PeftModel
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from placement.agent.runtime.bitsandbytes_weights import keep_packing
from placement.agent.runtime.token_blocks import TokenBlocks, divided

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "saw", "dog", ".")


def make(folder: Path) -> None:
    vocabulary = {word: number for number, word in enumerate(("</s>", "?", *WORDS))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="</s>", unk_token="?"
    )
    draw = torch.Generator().manual_seed(1)
    lines = [
        " ".join(WORDS[(start + n * n) % len(WORDS)] for n in range(12))
        for start in torch.randint(0, 10, (90,), generator=draw).tolist()
    ]
    (folder / "data.txt").write_text("\n".join(lines) + "\n")
    torch.manual_seed(3)
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    )
    gpt2 = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(vocabulary),
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=64,
            attn_pdrop=0.0,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
        )
    )
    qwen = Qwen3Config(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
    )
    mixtral = MixtralConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    for name, model in (
        *(("llama", llama), ("gpt2", gpt2)),
        *(("qwen", qwen), ("mixtral", mixtral)),
    ):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def load(folder: Path, tokens: Path, length: int) -> None:
    if (folder / "adapter_config.json").is_file():
        about = PeftConfig.from_pretrained(folder)
        base = AutoModelForCausalLM.from_pretrained(
            about.base_model_name_or_path, quantization_config=quantized_in(folder)
        )
        keep_packing(base)
        model = PeftModel.from_pretrained(base, folder).eval()
    else:
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    _, held_out = divided(TokenBlocks(tokens, length), 10, 0)
    losses = []
    with torch.no_grad():
        for inputs, targets in held_out:
            both = torch.cat([inputs, targets[-1:]]).unsqueeze(0)
            losses.append(float(model(both, labels=both).loss))
    weights = {name: one.double().sum() for name, one in model.named_parameters()}
    print(
        json.dumps(
            {
                "loss": sum(losses) / len(losses),
                "weights": {name: float(one) for name, one in weights.items()},
                "cat": tokenizer.decode(tokenizer("cat")["input_ids"]),
                "dtype": str(model.dtype),
            }
        )
    )


def quantized_in(folder: Path) -> BitsAndBytesConfig | None:
    """Return how the base was quantized that these adapters were trained on."""
    form = json.loads((folder / "fine_tune.json").read_text()).get("weights")
    if form == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    if form != "nf4":
        return None
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )


if __name__ == "__main__":
    kind, *words = sys.argv[1:]
    if kind == "make":
        make(Path(words[0]))
    else:
        load(Path(words[0]), Path(words[1]), int(words[2]))

"""Well-known models with their public shape numbers. Nothing is downloaded.

Sizes are those of the models' public papers, cards and configurations. Their parameter
counts are checked against transformers' own classes in
tests/placement/planner/test_exact.py. `tiny-gpt` is the portal's own: a model that the
demo recipe can train on a laptop's CPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from placement.planner.model.families.config_json import parse_config
from placement.planner.model.spec import ModelSpec
from placement.planner.values.errors import SpecInvalid
from telemetry.protocol.sentences import sentence


@dataclass(frozen=True, slots=True)
class WellKnown:
    """A configuration offered by name."""

    name: str
    title: str
    config: Mapping[str, Any]


_BY_NAME: dict[str, WellKnown] = {}
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
)
"""Order of the numbers in the tables below."""


def _add(name: str, title: str, family: str, **config: Any) -> None:
    _BY_NAME[name] = WellKnown(name, title, {"model_type": family, **config})


def _decoder(
    name: str, title: str, family: str, sizes: tuple[int, ...], **config: Any
) -> None:
    """Return a decoder of LLaMA's kind, stored in bfloat16."""
    numbers = dict(zip(_SIZES, sizes, strict=True))
    _add(name, title, family, dtype="bfloat16", **numbers, **config)


def _gpt_and_encoders() -> None:
    _add(
        "tiny-gpt",
        sentence("Tiny GPT, 10 M parameters: trains on a CPU"),
        "gpt2",
        n_embd=320,
        n_head=5,
        n_layer=6,
        n_positions=512,
        vocab_size=8000,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
    )
    _add("gpt2", "GPT-2, 124 M", "gpt2")
    for name, title, width, heads, blocks in (
        ("gpt2-medium", "GPT-2 medium, 355 M", 1024, 16, 24),
        ("gpt2-large", "GPT-2 large, 774 M", 1280, 20, 36),
        ("gpt2-xl", "GPT-2 XL, 1.56 B", 1600, 25, 48),
    ):
        _add(name, title, "gpt2", n_embd=width, n_head=heads, n_layer=blocks)
    large = {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    }
    _add("bert-base", "BERT base, 110 M", "bert")
    _add("bert-large", "BERT large, 335 M", "bert", **large)
    roberta = {"max_position_embeddings": 514, "type_vocab_size": 1}
    _add("roberta-base", "RoBERTa base, 125 M", "roberta", **roberta)
    _add("roberta-large", "RoBERTa large, 355 M", "roberta", **roberta, **large)
    _add(
        "xlm-roberta-base",
        "XLM-RoBERTa base, 278 M",
        "xlm-roberta",
        vocab_size=250002,
        **roberta,
    )
    _add("distilbert-base", "DistilBERT base, 67 M", "distilbert")
    _add("vit-base", "ViT base, 86 M, 224 px", "vit", num_labels=1000)
    _add("vit-large", "ViT large, 304 M, 224 px", "vit", num_labels=1000, **large)


def _opt_bloom_falcon() -> None:
    for name, title, width, heads, blocks, inner in (
        ("opt-125m", "OPT 125M", 768, 12, 12, 3072),
        ("opt-1.3b", "OPT 1.3B, 1.32 B", 2048, 32, 24, 8192),
        ("opt-6.7b", "OPT 6.7B, 6.66 B", 4096, 32, 32, 16384),
        ("opt-13b", "OPT 13B, 12.9 B", 5120, 40, 40, 20480),
    ):
        _add(
            name,
            title,
            "opt",
            dtype="float16",
            hidden_size=width,
            num_attention_heads=heads,
            num_hidden_layers=blocks,
            ffn_dim=inner,
            word_embed_proj_dim=width,
        )
    for name, title, width, heads, blocks in (
        ("bloom-560m", "BLOOM 560M, 559 M", 1024, 16, 24),
        ("bloom-7b", "BLOOM 7B1, 7.07 B", 4096, 32, 30),
        ("bloom-176b", "BLOOM, 176 B", 14336, 112, 70),
    ):
        _add(
            name,
            title,
            "bloom",
            dtype="float16" if blocks < 70 else "bfloat16",
            hidden_size=width,
            n_head=heads,
            n_layer=blocks,
        )
    _add("falcon-7b", "Falcon 7B, 6.92 B", "falcon", dtype="bfloat16")
    _add(
        "falcon-40b",
        "Falcon 40B, 41.3 B",
        "falcon",
        dtype="bfloat16",
        hidden_size=8192,
        num_attention_heads=128,
        num_hidden_layers=60,
        num_kv_heads=8,
        new_decoder_architecture=True,
    )


def _llamas() -> None:
    llama3, tied = (128256, 131072), {"tie_word_embeddings": True}
    for name, title, sizes, more in (
        ("llama-2-7b", "Llama 2 7B, 6.74 B",
         (4096, 11008, 32, 32, 32, 32000, 4096), {}),
        ("llama-2-13b", "Llama 2 13B, 13.0 B",
         (5120, 13824, 40, 40, 40, 32000, 4096), {}),
        ("llama-2-70b", "Llama 2 70B, 69.0 B",
         (8192, 28672, 80, 64, 8, 32000, 4096), {}),
        ("llama-3-8b", "Llama 3 8B, 8.03 B",
         (4096, 14336, 32, 32, 8, 128256, 8192), {}),
        ("llama-3-70b", "Llama 3 70B, 70.6 B",
         (8192, 28672, 80, 64, 8, 128256, 8192), {}),
        ("llama-3.1-8b", "Llama 3.1 8B, 8.03 B, long",
         (4096, 14336, 32, 32, 8, *llama3), {}),
        ("llama-3.1-70b", "Llama 3.1 and 3.3 70B, 70.6 B, long",
         (8192, 28672, 80, 64, 8, *llama3), {}),
        ("llama-3.1-405b", "Llama 3.1 405B, 406 B",
         (16384, 53248, 126, 128, 8, *llama3), {}),
        ("llama-3.2-1b", "Llama 3.2 1B, 1.24 B",
         (2048, 8192, 16, 32, 8, *llama3), tied),
        ("llama-3.2-3b", "Llama 3.2 3B, 3.21 B",
         (3072, 8192, 28, 24, 8, *llama3), tied),
    ):  # fmt: skip
        _decoder(name, title, "llama", sizes, **more)


def _mistrals_and_phis() -> None:
    _decoder(
        "mistral-7b",
        "Mistral 7B, 7.24 B",
        "mistral",
        (4096, 14336, 32, 32, 8, 32000, 32768),
    )
    _decoder(
        "mistral-nemo-12b",
        "Mistral Nemo 12B, 12.2 B",
        "mistral",
        (5120, 14336, 40, 32, 8, 131072, 131072),
        head_dim=128,
        sliding_window=None,
    )
    for name, title, sizes in (
        ("mixtral-8x7b", "Mixtral 8x7B, 46.7 B",
         (4096, 14336, 32, 32, 8, 32000, 32768)),
        ("mixtral-8x22b", "Mixtral 8x22B, 141 B",
         (6144, 16384, 56, 48, 8, 32768, 65536)),
    ):  # fmt: skip
        _decoder(name, title, "mixtral", sizes)
    _add(
        "phi-2",
        "Phi 2, 2.78 B",
        "phi",
        dtype="float16",
        hidden_size=2560,
        intermediate_size=10240,
        num_hidden_layers=32,
    )
    _decoder(
        "phi-3-mini",
        "Phi 3 mini, 3.82 B",
        "phi3",
        (3072, 8192, 32, 32, 32, 32064, 4096),
        sliding_window=2047,
    )
    _decoder(
        "phi-3-medium",
        "Phi 3 medium, 14.0 B",
        "phi3",
        (5120, 17920, 40, 40, 10, 32064, 4096),
        sliding_window=2047,
    )
    _decoder(
        "phi-4",
        "Phi 4, 14.7 B",
        "phi3",
        (5120, 17920, 40, 40, 10, 100352, 16384),
        pad_token_id=100349,
    )


def _qwens() -> None:
    tied = {"tie_word_embeddings": True}
    for name, title, sizes, more in (
        ("qwen2-0.5b", "Qwen2 0.5B, 494 M",
         (896, 4864, 24, 14, 2, 151936, 131072), tied),
        ("qwen2.5-0.5b", "Qwen2.5 0.5B, 494 M",
         (896, 4864, 24, 14, 2, 151936, 32768), tied),
        ("qwen2.5-1.5b", "Qwen2.5 1.5B, 1.54 B",
         (1536, 8960, 28, 12, 2, 151936, 131072), tied),
        ("qwen2.5-3b", "Qwen2.5 3B, 3.09 B",
         (2048, 11008, 36, 16, 2, 151936, 32768), tied),
        ("qwen2.5-7b", "Qwen2.5 7B, 7.62 B",
         (3584, 18944, 28, 28, 4, 152064, 131072), {}),
        ("qwen2.5-14b", "Qwen2.5 14B, 14.8 B",
         (5120, 13824, 48, 40, 8, 152064, 131072), {}),
        ("qwen2.5-32b", "Qwen2.5 32B, 32.8 B",
         (5120, 27648, 64, 40, 8, 152064, 131072), {}),
        ("qwen2.5-72b", "Qwen2.5 72B, 72.7 B",
         (8192, 29568, 80, 64, 8, 152064, 131072), {}),
    ):  # fmt: skip
        _decoder(name, title, "qwen2", sizes, **more)
    for name, title, sizes, more in (
        ("qwen3-0.6b", "Qwen3 0.6B, 596 M",
         (1024, 3072, 28, 16, 8, 151936, 40960), tied),
        ("qwen3-1.7b", "Qwen3 1.7B, 1.72 B",
         (2048, 6144, 28, 16, 8, 151936, 40960), tied),
        ("qwen3-4b", "Qwen3 4B, 4.02 B",
         (2560, 9728, 36, 32, 8, 151936, 40960), tied),
        ("qwen3-8b", "Qwen3 8B, 8.19 B",
         (4096, 12288, 36, 32, 8, 151936, 40960), {}),
        ("qwen3-14b", "Qwen3 14B, 14.8 B",
         (5120, 17408, 40, 40, 8, 151936, 40960), {}),
        ("qwen3-32b", "Qwen3 32B, 32.8 B",
         (5120, 25600, 64, 64, 8, 151936, 40960), {}),
    ):  # fmt: skip
        _decoder(name, title, "qwen3", sizes, head_dim=128, **more)


def _experts() -> None:
    for name, title, sizes, inner in (
        ("qwen3-30b-a3b", "Qwen3 30B-A3B, 30.5 B, 128 experts",
         (2048, 6144, 48, 32, 4, 151936, 40960), 768),
        ("qwen3-235b-a22b", "Qwen3 235B-A22B, 235 B, 128 experts",
         (4096, 12288, 94, 64, 4, 151936, 40960), 1536),
    ):  # fmt: skip
        _decoder(
            name,
            title,
            "qwen3_moe",
            sizes,
            head_dim=128,
            moe_intermediate_size=inner,
        )
    for name, title, blocks, count in (
        ("gpt-oss-20b", "gpt-oss 20B, 20.9 B, 32 experts", 24, 32),
        ("gpt-oss-120b", "gpt-oss 120B, 117 B, 128 experts", 36, 128),
    ):
        _decoder(
            name,
            title,
            "gpt_oss",
            (2880, 2880, blocks, 64, 8, 201088, 131072),
            head_dim=64,
            num_local_experts=count,
            num_experts_per_tok=4,
            sliding_window=128,
        )
    for name, title, count, step in (
        ("llama-4-scout", "Llama 4 Scout, its text model, 108 B, 16 experts", 16, 1),
        ("llama-4-maverick", "Llama 4 Maverick, its text model, 401 B, 128 experts",
         128, 2),
    ):  # fmt: skip
        _decoder(
            name,
            title,
            "llama4_text",
            (5120, 8192, 48, 40, 8, 202048, 10485760 if step == 1 else 1048576),
            num_local_experts=count,
            interleave_moe_layer_step=step,
            use_qk_norm=step == 1,
        )
    _decoder(
        "jamba-v0.1",
        "Jamba v0.1, 51.6 B, 16 experts, Mamba",
        "jamba",
        (4096, 14336, 32, 32, 8, 65536, 262144),
    )
    _decoder(
        "qwen1.5-moe-a2.7b",
        "Qwen1.5 MoE A2.7B, 14.3 B, 60 experts",
        "qwen2_moe",
        (2048, 5632, 24, 16, 16, 151936, 8192),
    )
    _decoder(
        "olmoe-1b-7b",
        "OLMoE 1B-7B, 6.92 B, 64 experts",
        "olmoe",
        (2048, 1024, 16, 16, 16, 50304, 4096),
    )


def _gemmas() -> None:
    for name, title, sizes in (
        ("gemma-2b", "Gemma 2B, 2.51 B", (2048, 16384, 18, 8, 1, 256000, 8192)),
        ("gemma-7b", "Gemma 7B, 8.54 B", (3072, 24576, 28, 16, 16, 256000, 8192)),
    ):
        _decoder(name, title, "gemma", sizes, head_dim=256)
    for name, title, sizes, head in (
        ("gemma-2-2b", "Gemma 2 2B, 2.61 B",
         (2304, 9216, 26, 8, 4, 256000, 8192), 256),
        ("gemma-2-9b", "Gemma 2 9B, 9.24 B",
         (3584, 14336, 42, 16, 8, 256000, 8192), 256),
        ("gemma-2-27b", "Gemma 2 27B, 27.2 B",
         (4608, 36864, 46, 32, 16, 256000, 8192), 128),
    ):  # fmt: skip
        _decoder(name, title, "gemma2", sizes, head_dim=head)
    for name, title, sizes, head, window in (
        ("gemma-3-1b", "Gemma 3 1B, 1.00 B",
         (1152, 6912, 26, 4, 1, 262144, 32768), 256, 512),
        ("gemma-3-4b", "Gemma 3 4B, its text model, 3.88 B",
         (2560, 10240, 34, 8, 4, 262208, 131072), 256, 1024),
        ("gemma-3-12b", "Gemma 3 12B, its text model, 11.8 B",
         (3840, 15360, 48, 16, 8, 262208, 131072), 256, 1024),
        ("gemma-3-27b", "Gemma 3 27B, its text model, 27.0 B",
         (5376, 21504, 62, 32, 16, 262208, 131072), 128, 1024),
    ):  # fmt: skip
        _decoder(
            name, title, "gemma3_text", sizes, head_dim=head, sliding_window=window
        )


def _deepseek_and_two_stacks() -> None:
    _decoder(
        "deepseek-v2-lite",
        "DeepSeek V2 Lite, 15.7 B, 64 experts",
        "deepseek_v2",
        (2048, 10944, 27, 16, 16, 102400, 163840),
        q_lora_rank=None,
        first_k_dense_replace=1,
        moe_intermediate_size=1408,
        num_experts_per_tok=6,
    )
    _decoder(
        "deepseek-v3",
        "DeepSeek V3 and R1, 671 B, 256 experts",
        "deepseek_v3",
        (7168, 18432, 61, 128, 128, 129280, 163840),
    )
    for name, title, width, inner, blocks, heads, size in (
        ("t5-small", "T5 small, 61 M", 512, 2048, 6, 8, 64),
        ("t5-base", "T5 base, 223 M", 768, 3072, 12, 12, 64),
        ("t5-large", "T5 large, 738 M", 1024, 4096, 24, 16, 64),
        ("t5-3b", "T5 3B, 2.85 B", 1024, 16384, 24, 32, 128),
    ):
        _add(
            name,
            title,
            "t5",
            d_model=width,
            d_ff=inner,
            num_layers=blocks,
            num_heads=heads,
            d_kv=size,
        )
    for name, title, width, heads, blocks, more in (
        ("whisper-tiny", "Whisper tiny, 38 M", 384, 6, 4, {}),
        ("whisper-base", "Whisper base, 73 M", 512, 8, 6, {}),
        ("whisper-small", "Whisper small, 242 M", 768, 12, 12, {}),
        ("whisper-medium", "Whisper medium, 764 M", 1024, 16, 24, {}),
        ("whisper-large-v3", "Whisper large v3, 1.54 B", 1280, 20, 32,
         {"num_mel_bins": 128, "vocab_size": 51866}),
    ):  # fmt: skip
        _add(
            name,
            title,
            "whisper",
            d_model=width,
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            encoder_layers=blocks,
            decoder_layers=blocks,
            encoder_ffn_dim=4 * width,
            decoder_ffn_dim=4 * width,
            **more,
        )


for _fill in (
    _gpt_and_encoders,
    _opt_bloom_falcon,
    _llamas,
    _mistrals_and_phis,
    _qwens,
    _experts,
    _gemmas,
    _deepseek_and_two_stacks,
):
    _fill()
WELL_KNOWN: Mapping[str, WellKnown] = _BY_NAME


MXFP4_FILES = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        *("model.layers.*.self_attn", "model.layers.*.mlp.router"),
        *("model.embed_tokens", "lm_head"),
    ],
}
"""``quantization_config`` of the files of openai/gpt-oss-20b and gpt-oss-120b."""


def as_published(spec: ModelSpec, *, trains: bool) -> ModelSpec:
    """Return a well-known model with the weights of its published files, to serve it.

    The files of gpt-oss have their experts in MXFP4. It is trained in 16 bits, as the
    list has it, because transformers trains no MXFP4 weights: its documentation loads
    them by ``Mxfp4Config(dequantize=True)`` to train.
    """
    if spec.source != "well-known" or spec.family != "gpt_oss" or trains:
        return spec
    if spec.is_quantized or spec.name not in WELL_KNOWN:
        return spec
    config = {**WELL_KNOWN[spec.name].config, "quantization_config": MXFP4_FILES}
    made = parse_config(config, name=spec.name, source="well-known")
    note = sentence("its published files have the experts in 4 bits (MXFP4)")
    return replace(made, notes=(*made.notes, note))


@cache
def well_known_spec(name: str) -> ModelSpec:
    """Return the ModelSpec of a well-known model. Raises SpecInvalid for another
    name.
    """
    if name not in WELL_KNOWN:
        raise SpecInvalid(
            {"name": f"'{name[:40]}' is not one of {', '.join(WELL_KNOWN)}"}
        )
    known = WELL_KNOWN[name]
    return parse_config(known.config, name=known.name, source="well-known")

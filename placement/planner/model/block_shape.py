"""Sizes and switches of a block of a known transformer family, without tensors.

They determine the memory of activations. Blocks of one model may differ in one way
only: a block with a "router" part runs experts, one without it a plain MLP.
"""

from dataclasses import dataclass
from typing import Literal

from telemetry.protocol.sentences import sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """Sizes, in elements, and switches of a block of a known transformer family."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    positions: int
    """Longest sequence with learned positions, or the configured context length."""
    norm: Literal["layernorm", "rmsnorm", "rmsnorm_gemma", "rmsnorm_t5"]
    activation: Literal["relu", "gelu", "gelu_new", "gelu_tanh", "silu", "quick_gelu"]
    gated: bool = False
    biases: bool = False
    rotary: Literal["none", "full", "partial", "complex"] = "none"
    """complex: pairs of numbers are multiplied as complex fp32 numbers (Llama 4)."""
    fused_qkv: bool = False
    """Queries, keys and values are views of one tensor, which stays whole for that
    reason.
    """
    fused_gate: bool = False
    """Gate and up are views of one product (Phi-3, GLM-4)."""
    rotary_ratio: float = 1.0
    """Share of each head that is rotated, if `rotary` is "partial"."""
    qk_norm: bool = False
    qk_norm_whole: bool = False
    """The norm runs over all heads together (OLMo 2, OLMoE), not for each head."""
    qk_unit: bool = False
    """Queries and keys are divided by their root mean square after the rotation,
    without trained weights (Llama 4).
    """
    norm_place: Literal["before", "after", "both", "output"] = "before"
    """Tensors that a sublayer normalizes: its input (before), the sum with the residual
    stream (after), input and output (both), its output alone (output: OLMo 2).
    """
    parallel: bool = False
    """Attention and MLP read the same input side by side."""
    shared_norm: bool = False
    """In a parallel block: one norm feeds both."""
    attention: Literal["causal", "bidirectional", "encoder_decoder"] = "causal"
    softcap: bool = False
    final_softcap: bool = False
    softmax_fp32: bool = True
    """Eager attention computes the softmax in fp32 and casts back."""
    alibi: bool = False
    sinks: bool = False
    """Attention has one trained score per head beside the keys (gpt-oss)."""
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    """Inner size of one expert; 0: `intermediate`, like the plain blocks."""
    shared_intermediate: int = 0
    """Inner size of the MLP that every token uses beside its experts; 0: none."""
    shared_gate: bool = False
    """A sigmoid of the input scales that MLP (Qwen 2 MoE)."""
    expert_biases: bool = False
    """Experts and their router have biases (gpt-oss)."""
    every_expert: bool = False
    """transformers runs every token through all experts, scaled by the router's scores,
    which are 0 for the others (Llama 4).
    """
    clamped_gate: bool = False
    """Gate and up are clamped, and the gate is x sigmoid(1.702 x) (gpt-oss)."""
    sliding_window: int = 0
    """Number of past tokens that a windowed block sees; 0: no block is windowed."""
    sliding_blocks: int = 0
    """Number of windowed blocks."""
    latent_query: int = 0
    """Multi-head latent attention (DeepSeek): width of the queries' latent; 0: none."""
    latent_kv: int = 0
    """Width of the latent from which keys and values are made. It is cached with
    `rope_dim` more numbers per token; 0: plain attention.
    """
    rope_dim: int = 0
    """Those of the `head_dim` numbers that carry the position, shared by all key
    heads.
    """
    value_dim: int = 0
    """Width of one value head, if it differs from `head_dim`."""
    state_dim: int = 0
    """Mamba (arXiv:2312.00752): numbers of a channel's state; 0: no block has a mixer.
    With it, blocks without an attention part have a mixer.
    """
    state_inner: int = 0
    """Channels of a mixer."""
    state_rank: int = 0
    """Inputs of the projection that makes the step sizes."""
    state_kernel: int = 0
    """Width of the causal convolution."""
    state_bias: bool = False
    """The mixer's projections have biases."""
    embedding_dropout_ratio: float = 0.0
    attention_dropout_ratio: float = 0.0
    hidden_dropout_ratio: float = 0.0
    activation_dropout_ratio: float = 0.0
    embedding_norm: bool = False
    scaled_embedding: bool = False
    embedding_width: int = 0
    """Columns of the token table if a projection follows it; 0: `hidden`."""
    encoder_tokens: int = 0
    """Fixed length of the encoder's sequence (Whisper: 1500); 0: the Workload's."""
    audio_channels: int = 0
    """Mel channels of a convolution stem over 2 x encoder_tokens frames (Whisper)."""
    image_tokens: int = 0
    """Vision: patches + class token; the sequence length is then fixed."""
    image_size: int = 0
    channels: int = 0
    labels: int = 0
    lora_rank: int = 0
    """Rank of the low-rank adapters beside the named products; 0: none."""
    lora_targets: tuple[str, ...] = ()
    """Names of the products with an adapter, in the family's words."""

    @property
    def experts_run(self) -> int:
        """Return the experts that compute for one token."""
        return self.experts if self.every_expert else self.experts_per_token

    @property
    def learns_positions(self) -> bool:
        """Return whether positions have a table."""
        others = self.alibi or self.state_dim or self.norm == "rmsnorm_t5"
        return self.rotary == "none" and not others

    @property
    def attention_width(self) -> int:
        """Return heads x head_dim: width of queries and of the attention's output."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Return kv_heads x head_dim: width of keys, and of values."""
        return self.kv_heads * self.head_dim


def shape_problems(shape: TransformerShape) -> dict[str, str]:
    """Return contradictions between the sizes of a block, by field."""
    problems: dict[str, str] = {}
    for name in ("hidden", "heads", "kv_heads", "head_dim", "intermediate"):
        if type(getattr(shape, name)) is not int or getattr(shape, name) < 1:
            problems[name] = sentence("must be a whole number above zero")
    if problems:
        return problems
    if shape.kv_heads > shape.heads or shape.heads % shape.kv_heads:
        problems["num_key_value_heads"] = sentence(
            "{kv_heads} key/value heads do not divide {heads} heads",
            kv_heads=shape.kv_heads,
            heads=shape.heads,
        )
    if type(shape.lora_rank) is not int or shape.lora_rank < 0:
        problems["lora_rank"] = sentence("must be a whole number, 0 for none")
    if shape.experts and not 1 <= shape.experts_per_token <= shape.experts:
        problems["num_experts_per_tok"] = sentence(
            "{experts_per_token} of {experts} experts per token",
            experts_per_token=shape.experts_per_token,
            experts=shape.experts,
        )
    return problems

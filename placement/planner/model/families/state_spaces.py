"""Readers for Mamba (arXiv:2312.00752), Falcon Mamba and Mamba-2 (arXiv:2405.21060).

Parameters are those of transformers' classes. Each matrix is guessed to keep its input
and output for each token, as the kernels of mamba-ssm do, which make the states again
in backward. transformers' code without the kernels needs more. It is followed instead
where torch is installed.
"""

import math

from placement.planner.model.config_reader import ConfigFields
from placement.planner.model.families.config_fields import MAX_BLOCKS, vocab
from placement.planner.model.families.tensor_list import TensorList
from placement.planner.model.spec import ModelSpec
from telemetry.protocol.sentences import sentence

_KERNELS = sentence(
    "Its Mamba mixers are counted with the kernels of mamba-ssm. transformers' code "
    "without them needs more memory."
)


def mamba(fields: ConfigFields, width: float) -> ModelSpec:
    """Mamba and Falcon Mamba, whose norms of the steps have no weights."""
    hidden, inner, states, kernel = _sizes(fields, 768, 16)
    rank = _rank(fields, hidden)
    biased = fields.flag("use_bias")
    found = TensorList(width)
    count = _begin(fields, found, hidden, blocks=32, tokens=50280)
    for number in range(count):
        name = f"backbone.layers.{number}.mixer"
        found.add(f"backbone.layers.{number}.norm.weight", hidden, kept=hidden)
        found.add(f"{name}.A_log", inner, states)
        found.add(f"{name}.D", inner)
        _convolution(fields, found, name, inner, kernel)
        found.linear(f"{name}.in_proj", 2 * inner, hidden, bias=biased)
        found.linear(f"{name}.x_proj", rank + 2 * states, inner, bias=False)
        found.linear(f"{name}.dt_proj", inner, rank, bias=True)
        found.linear(f"{name}.out_proj", hidden, inner, bias=biased)
    return _end(fields, found, hidden, "mamba", tied=True)


def mamba2(fields: ConfigFields, width: float) -> ModelSpec:
    """Mamba-2: one decay for each head, and a gated norm before the last projection."""
    hidden, inner, states, kernel = _sizes(fields, 4096, 128)
    groups = fields.whole("n_groups", default=8, high=2**12)
    heads = fields.whole("num_heads", default=128, high=2**14)
    size = fields.whole("head_dim", default=64, high=2**14)
    fields.require(
        "num_heads",
        heads * size == inner,
        sentence(
            "{heads} heads of {size} are not {inner}, the hidden size times expand",
            heads=heads,
            size=size,
            inner=inner,
        ),
    )
    fields.require(
        "n_groups",
        heads % groups == 0,
        sentence(
            "{groups} groups do not divide {heads} heads", groups=groups, heads=heads
        ),
    )
    biased = fields.flag("use_bias")
    mixed = inner + 2 * groups * states
    found = TensorList(width)
    count = _begin(fields, found, hidden, blocks=64, tokens=32768)
    for number in range(count):
        name = f"backbone.layers.{number}.mixer"
        found.add(f"backbone.layers.{number}.norm.weight", hidden, kept=hidden)
        found.add(f"{name}.dt_bias", heads)
        found.add(f"{name}.A_log", heads)
        found.add(f"{name}.D", heads)
        _convolution(fields, found, name, mixed, kernel)
        found.linear(f"{name}.in_proj", inner + mixed + heads, hidden, bias=biased)
        found.add(f"{name}.norm.weight", inner, kept=inner)
        found.linear(f"{name}.out_proj", hidden, inner, bias=biased)
    return _end(fields, found, hidden, "mamba2", tied=False)


def _sizes(fields: ConfigFields, hidden: int, states: int) -> tuple[int, int, int, int]:
    """Return hidden size, channels of a mixer, numbers of a state, kernel width."""
    width = fields.whole("hidden_size", default=hidden, high=2**18)
    return (
        width,
        width * fields.whole("expand", default=2, high=2**10),
        fields.whole("state_size", default=states, high=2**16),
        fields.whole("conv_kernel", default=4, high=2**10),
    )


def _rank(fields: ConfigFields, hidden: int) -> int:
    if fields.peek("time_step_rank") in ("auto", None):
        return math.ceil(hidden / 16)
    return fields.whole("time_step_rank", high=2**18)


def _begin(
    fields: ConfigFields, found: TensorList, hidden: int, *, blocks: int, tokens: int
) -> int:
    """Add the token table. Return the number of blocks."""
    found.add("backbone.embeddings.weight", vocab(fields, tokens), hidden)
    return fields.whole("num_hidden_layers", default=blocks, high=MAX_BLOCKS)


def _convolution(
    fields: ConfigFields, found: TensorList, name: str, channels: int, kernel: int
) -> None:
    found.add(f"{name}.conv1d.weight", channels, 1, kernel, kept=channels)
    if fields.flag("use_conv_bias", default=True):
        found.add(f"{name}.conv1d.bias", channels)


def _end(
    fields: ConfigFields, found: TensorList, hidden: int, family: str, *, tied: bool
) -> ModelSpec:
    """Add the last norm and the logits. Return the ModelSpec."""
    found.add("backbone.norm_f.weight", hidden, kept=hidden)
    rows = found.tensors[0].shape[0]
    found.linear("lm_head", rows, hidden, bias=False)
    shared = fields.flag("tie_word_embeddings", default=tied)
    groups = [("backbone.embeddings.weight", "lm_head.weight")] if shared else []
    return found.spec(family, (_KERNELS,), tied_groups=groups)

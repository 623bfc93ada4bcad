"""Readers for encoder-decoders: T5, mT5 and Whisper."""

from placement.planner.model.block_layout import (
    LinearNames,
    Shapes,
    Tensors,
    block_parts,
    embedding_layer,
    head_layer,
    with_extra,
)
from placement.planner.model.block_shape import TransformerShape
from placement.planner.model.config_reader import ConfigFields
from placement.planner.model.families.config_fields import (
    ACTIVATIONS,
    blocks,
    head_size,
    made,
    positions,
    vocab,
)
from placement.planner.model.spec import (
    LayerSpec,
    ModelSpec,
    part,
)
from placement.planner.values.errors import UnknownHead
from telemetry.protocol.sentences import sentence

_T5 = LinearNames(
    query="q", key="k", value="v", out="o", gate="wi_0", up="wi_1", down="wo"
)
_T5_PLAIN = LinearNames(query="q", key="k", value="v", out="o", up="wi", down="wo")
_WHISPER = LinearNames(out="out_proj", up="fc1", down="fc2")


def t5(fields: ConfigFields, width: float) -> ModelSpec:
    """T5."""
    return _t5_like(fields, width)


def _t5_like(
    fields: ConfigFields,
    width: float,
    *,
    vocab_default: int = 32128,
    layers: int = 6,
    heads: int = 8,
    inner: int = 2048,
    projection: str = "relu",
) -> ModelSpec:
    """Read a T5-like model: relative positions in each stack's first block.

    The head is always tied: since transformers 5, T5Config ties it regardless of the
    file and reads `tie_word_embeddings` only as "scale the decoder's output".
    """
    hidden = fields.whole("d_model", default=512, high=2**18)
    heads = fields.whole("num_heads", default=heads, high=8192)
    projection = fields.word("feed_forward_proj", default=projection)
    gated = projection.startswith("gated-")
    activation = projection.removeprefix("gated-")
    fields.require(
        "feed_forward_proj",
        activation in ACTIVATIONS,
        sentence("is not relu or gated-gelu"),
    )
    dropout = fields.ratio("dropout_rate", default=0.1)
    if gated and activation == "gelu":
        activation = "gelu_new"
    shape = TransformerShape(
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=fields.whole("d_kv", default=64, high=2**16),
        intermediate=fields.whole("d_ff", default=inner, high=2**21),
        vocab=vocab(fields, vocab_default),
        positions=positions(fields, "n_positions", default=512),
        norm="rmsnorm_t5",
        activation=ACTIVATIONS.get(activation, "relu"),  # type: ignore[arg-type]
        gated=gated,
        attention="encoder_decoder",
        embedding_dropout_ratio=dropout,
        attention_dropout_ratio=dropout,
        hidden_dropout_ratio=dropout,
        activation_dropout_ratio=dropout,
    )
    tensors = Tensors(
        names=_T5 if gated else _T5_PLAIN,
        embedding=[(shape.vocab, hidden)],
        tied=shape.vocab * hidden,
    )
    encoders = blocks(fields, "num_layers", default=layers)
    decoders = blocks(fields, "num_decoder_layers", default=encoders)
    buckets = fields.whole("relative_attention_num_buckets", default=32, high=2**16)
    stack = _t5_layers(shape, tensors, encoders, decoders, buckets, width)
    return made("seq2seq_lm", shape, stack, [["embedding.tokens", "head.logits"]])


def _blocks(
    shape: TransformerShape,
    tensors: Tensors,
    encoders: int,
    decoders: int,
    width: float,
) -> tuple[list[LayerSpec], list[LayerSpec]]:
    """Return the blocks of the encoder and those of the decoder."""
    own = block_parts(shape, tensors, width)
    cross = block_parts(shape, tensors, width, cross=True)
    return (
        [LayerSpec(f"encoder {i}", "encoder", own) for i in range(encoders)],
        [LayerSpec(f"decoder {i}", "decoder", cross) for i in range(decoders)],
    )


def _t5_layers(
    shape: TransformerShape,
    tensors: Tensors,
    encoders: int,
    decoders: int,
    buckets: int,
    width: float,
) -> tuple[LayerSpec, ...]:
    relative = part("attention", [(buckets, shape.heads)], element_bytes=width)
    encoder, decoder = _blocks(shape, tensors, encoders, decoders, width)
    encoder[0] = with_extra(encoder[0], relative)
    decoder[0] = with_extra(decoder[0], relative)
    last_norm = part("norm", [(shape.hidden,)], element_bytes=width)
    encoder[-1] = with_extra(encoder[-1], last_norm)
    return (
        embedding_layer(tensors.embedding, tensors, shape, width),
        *encoder,
        *decoder,
        head_layer(shape, tensors, width),
    )


def mt5(fields: ConfigFields, width: float) -> ModelSpec:
    """mT5: T5 with a gated MLP and many more tokens."""
    return _t5_like(
        fields,
        width,
        vocab_default=250112,
        layers=8,
        heads=6,
        inner=1024,
        projection="gated-gelu",
    )


def whisper(fields: ConfigFields, width: float) -> ModelSpec:
    """Whisper: two convolutions over the spectrogram, then encoder and decoder.

    The encoder's sinusoidal positions are frozen. Keys have no bias.
    """
    hidden = fields.whole("d_model", default=384, high=2**18)
    heads = fields.whole("encoder_attention_heads", default=6, high=8192)
    inner = fields.whole("encoder_ffn_dim", default=1536, high=2**21)
    if fields.whole("decoder_attention_heads", default=6, high=8192) != heads:
        raise UnknownHead(
            "whisper", sentence("whose encoder and decoder differ in heads")
        )
    if fields.whole("decoder_ffn_dim", default=1536, high=2**21) != inner:
        raise UnknownHead(
            "whisper", sentence("whose encoder and decoder differ in size")
        )
    given = fields.peek("architectures")
    if isinstance(given, list) and given and given[0] != _WHISPER_CLASS:
        raise UnknownHead("whisper", sentence("as {given}", given=str(given[0])[:60]))
    dropout = fields.ratio("dropout")
    shape = TransformerShape(
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=head_size(fields, hidden, heads, "encoder_attention_heads"),
        intermediate=inner,
        vocab=vocab(fields, 51865),
        positions=positions(fields, "max_target_positions", default=448),
        norm="layernorm",
        activation=fields.choice(  # type: ignore[arg-type]
            "activation_function", options=ACTIVATIONS, default="gelu"
        ),
        biases=True,
        attention="encoder_decoder",
        softmax_fp32=False,
        embedding_dropout_ratio=dropout,
        attention_dropout_ratio=fields.ratio("attention_dropout"),
        hidden_dropout_ratio=dropout,
        activation_dropout_ratio=fields.ratio("activation_dropout"),
        encoder_tokens=positions(fields, "max_source_positions", default=1500),
        audio_channels=fields.whole("num_mel_bins", default=80, high=4096),
    )
    encoders = blocks(fields, "encoder_layers", default=4)
    decoders = blocks(fields, "decoder_layers", default=4)
    tied = fields.flag("tie_word_embeddings", default=True)
    layers = _whisper_layers(shape, encoders, decoders, width, tied)
    groups = [["embedding.tokens", "head.logits"]] if tied else []
    return made("seq2seq_lm", shape, layers, groups)


_WHISPER_CLASS = "WhisperForConditionalGeneration"


def _whisper_layers(
    shape: TransformerShape, encoders: int, decoders: int, width: float, tied: bool
) -> tuple[LayerSpec, ...]:
    hidden, mel = shape.hidden, shape.audio_channels
    tables: Shapes = [
        (hidden, mel, 3),
        (hidden,),
        (hidden, hidden, 3),
        (hidden,),
        (shape.vocab, hidden),
        (shape.positions, hidden),
    ]
    size = shape.vocab * hidden
    tensors = Tensors(
        names=_WHISPER,
        qkv_bias=True,
        key_bias=False,
        out_bias=True,
        mlp_bias=True,
        norm_bias=True,
        embedding=tables,
        head=[] if tied else [(shape.vocab, hidden)],
        tied=size if tied else 0,
    )
    first = embedding_layer(tables, tensors, shape, width)
    sinusoids = part(
        "embedding", [(shape.encoder_tokens, hidden)], element_bytes=width, frozen=True
    )
    encoder, decoder = _blocks(shape, tensors, encoders, decoders, width)
    last_norm = part("norm", [(hidden,), (hidden,)], element_bytes=width)
    encoder[-1] = with_extra(encoder[-1], last_norm)
    return (
        with_extra(first, sinusoids),
        *encoder,
        *decoder,
        head_layer(shape, tensors, width),
    )

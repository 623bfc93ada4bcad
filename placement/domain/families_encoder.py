"""Readers for encoders and encoder-decoders: BERT, RoBERTa, T5, ViT.

The head depends on `architectures[0]`; without it, the masked language model (BERT,
RoBERTa) or the classifier (ViT).
"""

from placement.domain.config import Fields
from placement.domain.layout import (
    Shapes,
    Tensors,
    block_parts,
    embedding_layer,
    head_layer,
    linear,
    with_extra,
)
from placement.domain.reading import (
    ACTIVATIONS,
    blocks,
    finish,
    head_size,
    labels,
    made,
    positions,
    vocab,
)
from placement.domain.spec import LayerSpec, ModelSpec, TransformerShape, part


def _bert_like(
    fields: Fields, width: float, *, vocab_default: int, rows: int, types: int
) -> ModelSpec:
    hidden = fields.whole("hidden_size", default=768, high=2**18)
    heads = fields.whole("num_attention_heads", default=12, high=8192)
    shape = TransformerShape(
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=head_size(fields, hidden, heads, "num_attention_heads"),
        intermediate=fields.whole("intermediate_size", default=3072, high=2**21),
        vocab=vocab(fields, vocab_default),
        positions=positions(fields, "max_position_embeddings", default=rows),
        norm="layernorm",
        norm_place="after",
        activation=fields.choice(  # type: ignore[arg-type]
            "hidden_act", options=ACTIVATIONS, default="gelu"
        ),
        biases=True,
        attention="bidirectional",
        softmax_fp32=False,
        embedding_norm=True,
        embedding_dropout_ratio=fields.ratio("hidden_dropout_prob", default=0.1),
        attention_dropout_ratio=fields.ratio(
            "attention_probs_dropout_prob", default=0.1
        ),
        hidden_dropout_ratio=fields.ratio("hidden_dropout_prob", default=0.1),
        labels=labels(fields, _label_count(fields, 2)),
    )
    kinds = fields.whole("type_vocab_size", default=types, low=1, high=2**16)
    tensors = Tensors(
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        norm_bias=True,
        final_norm=False,
        embedding=[
            (shape.vocab, hidden),
            (shape.positions, hidden),
            (kinds, hidden),
        ],
    )
    head = _architecture_head(fields, "masked_lm")
    groups: tuple[tuple[str, ...], ...] = ()
    if head == "masked_lm":
        tensors.head = [*linear(hidden, hidden, True), (shape.vocab,)]
        tensors.head_norms = 1
        if fields.flag("tie_word_embeddings", default=True):
            tensors.tied = shape.vocab * hidden
            groups = (("embedding.tokens", "head.logits"),)
        else:
            tensors.head.append((shape.vocab, hidden))
    else:
        tensors.head = linear(hidden, hidden, True)
        if head == "sequence_classification":
            tensors.head += linear(hidden, shape.labels, True)
    count = blocks(fields, "num_hidden_layers", default=12)
    return finish(head, shape, tensors, count, width, groups)


def bert(fields: Fields, width: float) -> ModelSpec:
    """BERT."""
    return _bert_like(fields, width, vocab_default=30522, rows=512, types=2)


def roberta(fields: Fields, width: float) -> ModelSpec:
    """RoBERTa: BERT's blocks, one token type."""
    return _bert_like(fields, width, vocab_default=50265, rows=512, types=2)


def t5(fields: Fields, width: float) -> ModelSpec:
    """T5: encoder and decoder, relative positions in each stack's first block.

    The head is always tied: since transformers 5, T5Config ties whatever the file says
    and reads `tie_word_embeddings` only as "scale the decoder's output".
    """
    hidden = fields.whole("d_model", default=512, high=2**18)
    heads = fields.whole("num_heads", default=8, high=8192)
    projection = fields.word("feed_forward_proj", default="relu")
    gated = projection.startswith("gated-")
    activation = projection.removeprefix("gated-")
    fields.must(
        "feed_forward_proj", activation in ACTIVATIONS, "is not relu or gated-gelu"
    )
    dropout = fields.ratio("dropout_rate", default=0.1)
    if gated and activation == "gelu":
        activation = "gelu_new"
    shape = TransformerShape(
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=fields.whole("d_kv", default=64, high=2**16),
        intermediate=fields.whole("d_ff", default=2048, high=2**21),
        vocab=vocab(fields, 32128),
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
    tensors = Tensors(embedding=[(shape.vocab, hidden)], tied=shape.vocab * hidden)
    encoders = blocks(fields, "num_layers", default=6)
    decoders = blocks(fields, "num_decoder_layers", default=encoders)
    buckets = fields.whole("relative_attention_num_buckets", default=32, high=2**16)
    layers = _t5_layers(shape, tensors, encoders, decoders, buckets, width)
    return made("seq2seq_lm", shape, layers, [["embedding.tokens", "head.logits"]])


def _t5_layers(
    shape: TransformerShape,
    tensors: Tensors,
    encoders: int,
    decoders: int,
    buckets: int,
    width: float,
) -> tuple[LayerSpec, ...]:
    relative = part("attention", [(buckets, shape.heads)], element_bytes=width)
    encoder_parts = block_parts(shape, tensors, width)
    decoder_parts = block_parts(shape, tensors, width, cross=True)
    encoder = [
        LayerSpec(f"encoder {i}", "encoder", encoder_parts) for i in range(encoders)
    ]
    decoder = [
        LayerSpec(f"decoder {i}", "decoder", decoder_parts) for i in range(decoders)
    ]
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


def vit(fields: Fields, width: float) -> ModelSpec:
    """ViT: the image becomes a fixed number of tokens, one per patch and one more."""
    hidden = fields.whole("hidden_size", default=768, high=2**18)
    heads = fields.whole("num_attention_heads", default=12, high=8192)
    image = fields.whole("image_size", default=224, high=2**14)
    patch = fields.whole("patch_size", default=16, high=2**14)
    channels = fields.whole("num_channels", default=3, high=4096)
    fields.must("patch_size", patch <= image, f"larger than the image size {image}")
    tokens = max(1, image // patch) ** 2 + 1
    bias = fields.flag("qkv_bias", default=True)
    head = _architecture_head(fields, "image_classification")
    shape = TransformerShape(
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=head_size(fields, hidden, heads, "num_attention_heads"),
        intermediate=fields.whole("intermediate_size", default=3072, high=2**21),
        vocab=0,
        positions=tokens,
        norm="layernorm",
        activation=fields.choice(  # type: ignore[arg-type]
            "hidden_act", options=ACTIVATIONS, default="gelu"
        ),
        biases=bias,
        attention="bidirectional",
        softmax_fp32=False,
        embedding_dropout_ratio=fields.ratio("hidden_dropout_prob"),
        attention_dropout_ratio=fields.ratio("attention_probs_dropout_prob"),
        hidden_dropout_ratio=fields.ratio("hidden_dropout_prob"),
        image_tokens=tokens,
        image_size=image,
        channels=channels,
        labels=labels(fields, _label_count(fields, 2)),
    )
    embedding: Shapes = [
        (1, 1, hidden),
        (1, tokens, hidden),
        (hidden, channels, patch, patch),
        (hidden,),
    ]
    tensors = Tensors(
        qkv_bias=bias,
        out_bias=True,
        mlp_bias=True,
        norm_bias=True,
        embedding=embedding,
        head=linear(hidden, hidden, True)
        if head == "none"
        else linear(hidden, shape.labels, True),
    )
    count = blocks(fields, "num_hidden_layers", default=12)
    return finish(head, shape, tensors, count, width)


def _label_count(fields: Fields, default: int) -> int:
    """Classes named in `id2label`, as Hugging Face writes them."""
    names = fields.peek("id2label")
    return len(names) if isinstance(names, dict) and names else default


def _architecture_head(fields: Fields, default: str) -> str:
    """The head that `architectures[0]` names."""
    given = fields.peek("architectures")
    name = given[0] if isinstance(given, list) and given else ""
    if not isinstance(name, str) or not name:
        return default
    if name.endswith("SequenceClassification"):
        return "sequence_classification"
    if name.endswith("ImageClassification"):
        return "image_classification"
    if name.endswith(("MaskedLM", "PreTraining")):
        return "masked_lm"
    if name.endswith("Model"):
        return "none"
    fields.must("architectures", False, f"'{name[:60]}' has a head not known here")
    return default

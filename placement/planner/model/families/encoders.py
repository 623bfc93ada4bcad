"""Readers for encoders: BERT, RoBERTa, XLM-R, DistilBERT, ELECTRA, ViT.

The head depends on `architectures[0]`. Without it, it is the masked language model
(BERT, RoBERTa) or the classifier (ViT).
"""

from dataclasses import replace

from placement.planner.model.block_layout import LinearNames, Shapes, Tensors, linear
from placement.planner.model.block_shape import TransformerShape
from placement.planner.model.config_reader import ConfigFields
from placement.planner.model.families.config_fields import (
    ShapeFields,
    blocks,
    finish,
    labels,
    read_shape,
)
from placement.planner.model.spec import (
    Linear,
    ModelSpec,
)
from placement.planner.values.errors import UnknownHead
from telemetry.protocol.sentences import sentence

_BERT = LinearNames(
    query="query", key="key", value="value", out="dense", up="dense", down="dense"
)
_DISTIL = LinearNames(
    query="q_lin", key="k_lin", value="v_lin", out="out_lin", up="lin1", down="lin2"
)
_VIT = LinearNames(out="o_proj", up="fc1", down="fc2")


_ENCODER = ShapeFields(
    hidden=(("hidden_size",), 768),
    heads=(("num_attention_heads",), 12),
    inner=(("intermediate_size",), 3072),
    vocab=30522,
    positions=(("max_position_embeddings",), 512),
    embedding_dropout=("hidden_dropout_prob", 0.1),
    attention_dropout=("attention_probs_dropout_prob", 0.1),
    hidden_dropout=("hidden_dropout_prob", 0.1),
)
_ROBERTA = replace(_ENCODER, vocab=50265)
_ELECTRA = replace(
    _ENCODER,
    hidden=(("hidden_size",), 256),
    heads=(("num_attention_heads",), 4),
    inner=(("intermediate_size",), 1024),
)
_DISTILBERT = ShapeFields(
    hidden=(("dim", "hidden_size"), 768),
    heads=(("n_heads", "num_attention_heads"), 12),
    inner=(("hidden_dim",), 3072),
    vocab=30522,
    positions=(("max_position_embeddings",), 512),
    activation=("activation", "gelu"),
    embedding_dropout=("dropout", 0.1),
    attention_dropout=("attention_dropout", 0.1),
    hidden_dropout=("dropout", 0.1),
)
_IMAGE = replace(
    _ENCODER,
    vocab=0,
    embedding_dropout=("hidden_dropout_prob", 0.0),
    attention_dropout=("attention_probs_dropout_prob", 0.0),
    hidden_dropout=("hidden_dropout_prob", 0.0),
)


def _post_norm_shape(
    fields: ConfigFields, row: ShapeFields, *, embedding_width: int = 0
) -> TransformerShape:
    return read_shape(
        fields,
        row,
        norm_place="after",
        biases=True,
        attention="bidirectional",
        softmax_fp32=False,
        embedding_norm=True,
        labels=labels(fields, _label_count(fields)),
        embedding_width=embedding_width,
    )


def _post_norm(names: LinearNames, embedding: Shapes) -> Tensors:
    """Return BERT's tensors: biases everywhere, no norm after the last block."""
    return Tensors(
        names=names,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        norm_bias=True,
        final_norm=False,
        embedding=embedding,
    )


def _dense(tensors: Tensors, name: str, inputs: int, outputs: int) -> None:
    """Add a biased linear layer to the head."""
    tensors.head += linear(inputs, outputs, True)
    tensors.head_linears.append(Linear(name, outputs, inputs))


def _masked_head(
    fields: ConfigFields, tensors: Tensors, rows: int, columns: int, name: str
) -> tuple[tuple[str, ...], ...]:
    """Add logits over the tokens with a bias of their own, tied to the token table."""
    tensors.head.append((rows,))
    if fields.flag("tie_word_embeddings", default=True):
        tensors.tied = rows * columns
        return (("embedding.tokens", "head.logits"),)
    tensors.head.append((rows, columns))
    tensors.head_linears.append(Linear(name, rows, columns))
    return ()


def _bert_like(
    fields: ConfigFields, width: float, row: ShapeFields, *, is_roberta: bool
) -> ModelSpec:
    shape = _post_norm_shape(fields, row)
    hidden = shape.hidden
    kinds = fields.whole("type_vocab_size", default=2, low=1, high=2**16)
    embedding: Shapes = [
        (shape.vocab, hidden),
        (shape.positions, hidden),
        (kinds, hidden),
    ]
    tensors = _post_norm(_BERT, embedding)
    head = architecture_head(fields, "masked_lm")
    groups: tuple[tuple[str, ...], ...] = ()
    _dense(tensors, "dense", hidden, hidden)
    if head == "masked_lm":
        tensors.head_norms = 1
        groups = _masked_head(fields, tensors, shape.vocab, hidden, "decoder")
        if not groups:
            # If untied, the product and the head have separate biases.
            tensors.head.append((shape.vocab,))
    elif head == "sequence_classification":
        name = "out_proj" if is_roberta else "classifier"
        _dense(tensors, name, hidden, shape.labels)
    count = blocks(fields, "num_hidden_layers", default=12)
    return finish(head, shape, tensors, count, width, groups)


def bert(fields: ConfigFields, width: float) -> ModelSpec:
    """BERT."""
    return _bert_like(fields, width, _ENCODER, is_roberta=False)


def roberta(fields: ConfigFields, width: float) -> ModelSpec:
    """RoBERTa: BERT's blocks with other heads."""
    return _bert_like(fields, width, _ROBERTA, is_roberta=True)


def xlm_roberta(fields: ConfigFields, width: float) -> ModelSpec:
    """XLM-RoBERTa: RoBERTa with many more tokens."""
    return _bert_like(fields, width, _ENCODER, is_roberta=True)


def distilbert(fields: ConfigFields, width: float) -> ModelSpec:
    """DistilBERT: BERT's blocks under other names, no token types, no pooler."""
    shape = _post_norm_shape(fields, _DISTILBERT)
    hidden = shape.hidden
    if fields.flag("sinusoidal_pos_embds"):
        raise UnknownHead("distilbert", sentence("with frozen sinusoidal positions"))
    embedding: Shapes = [(shape.vocab, hidden), (shape.positions, hidden)]
    tensors = _post_norm(_DISTIL, embedding)
    head = architecture_head(fields, "masked_lm")
    groups: tuple[tuple[str, ...], ...] = ()
    if head == "masked_lm":
        _dense(tensors, "vocab_transform", hidden, hidden)
        tensors.head_norms = 1
        groups = _masked_head(fields, tensors, shape.vocab, hidden, "vocab_projector")
    elif head == "sequence_classification":
        _dense(tensors, "pre_classifier", hidden, hidden)
        _dense(tensors, "classifier", hidden, shape.labels)
    count = blocks(fields, "n_layers", "num_hidden_layers", default=6)
    return finish(head, shape, tensors, count, width, groups)


def electra(fields: ConfigFields, width: float) -> ModelSpec:
    """ELECTRA: BERT's blocks, and a narrower token table with a projection after it."""
    narrow = fields.whole("embedding_size", default=128, high=2**18)
    shape = _post_norm_shape(fields, _ELECTRA, embedding_width=narrow)
    hidden = shape.hidden
    kinds = fields.whole("type_vocab_size", default=2, low=1, high=2**16)
    embedding: Shapes = [
        (shape.vocab, narrow),
        (shape.positions, narrow),
        (kinds, narrow),
    ]
    if narrow != hidden:
        embedding += linear(narrow, hidden, True)
    tensors = _post_norm(_BERT, embedding)
    head = architecture_head(fields, "masked_lm")
    given = fields.peek("architectures")
    if head == "masked_lm" and isinstance(given, list) and "Pre" in str(given[0]):
        raise UnknownHead("electra", sentence("for its discriminator's training"))
    groups: tuple[tuple[str, ...], ...] = ()
    if head == "masked_lm":
        _dense(tensors, "dense", hidden, narrow)
        tensors.head_norms, tensors.head_norm_size = 1, narrow
        groups = _masked_head(fields, tensors, shape.vocab, narrow, "generator_lm_head")
    elif head == "sequence_classification":
        _dense(tensors, "dense", hidden, hidden)
        _dense(tensors, "out_proj", hidden, shape.labels)
    count = blocks(fields, "num_hidden_layers", default=12)
    return finish(head, shape, tensors, count, width, groups)


def vit(fields: ConfigFields, width: float) -> ModelSpec:
    """ViT: the image becomes a fixed number of tokens, one per patch and one more."""
    image = fields.whole("image_size", default=224, high=2**14)
    patch = fields.whole("patch_size", default=16, high=2**14)
    channels = fields.whole("num_channels", default=3, high=4096)
    fields.require(
        "patch_size",
        patch <= image,
        sentence("larger than the image size {image}", image=image),
    )
    tokens = max(1, image // patch) ** 2 + 1
    bias = fields.flag("qkv_bias", default=True)
    head = architecture_head(fields, "image_classification")
    shape = read_shape(
        fields,
        _IMAGE,
        positions=tokens,
        biases=bias,
        attention="bidirectional",
        softmax_fp32=False,
        image_tokens=tokens,
        image_size=image,
        channels=channels,
        labels=labels(fields, _label_count(fields)),
    )
    hidden = shape.hidden
    embedding: Shapes = [
        (1, 1, hidden),
        (1, tokens, hidden),
        (hidden, channels, patch, patch),
        (hidden,),
    ]
    tensors = Tensors(
        names=_VIT,
        qkv_bias=bias,
        out_bias=True,
        mlp_bias=True,
        norm_bias=True,
        embedding=embedding,
    )
    if head == "none":
        _dense(tensors, "dense", hidden, hidden)
    else:
        _dense(tensors, "classifier", hidden, shape.labels)
    count = blocks(fields, "num_hidden_layers", default=12)
    return finish(head, shape, tensors, count, width)


def _label_count(fields: ConfigFields) -> int:
    """Return the number of classes in `id2label`, as Hugging Face writes them.

    2 without it.
    """
    names = fields.peek("id2label")
    return len(names) if isinstance(names, dict) and names else 2


def architecture_head(fields: ConfigFields, default: str) -> str:
    """Return the head that `architectures[0]` names. Raises UnknownHead for another
    one.
    """
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
    raise UnknownHead(fields.word("model_type"), sentence("as {name}", name=name))

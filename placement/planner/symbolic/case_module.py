"""A case as a module, its batch and its loss."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from placement.planner.symbolic.adapters import adapt, freeze
from placement.planner.symbolic.case import TEXT_KINDS, Case
from placement.planner.symbolic.networks import network
from placement.planner.values.entry_point import EntryPoint
from placement.planner.values.errors import SpecInvalid

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
TASKS = (
    ("ForMaskedLM", "mlm"),
    ("ForSequenceClassification", "seqcls"),
    ("ForImageClassification", "cls_img"),
    ("ForSpeechSeq2Seq", "speech"),
    ("ForConditionalGeneration", "seq2seq"),
    ("ForPreTraining", "mlm"),
    ("ForCTC", "ctc"),
)
"""Kind of batch by the end of a class's name; see `filled` for the others."""
BASE_INPUTS = {
    "pixel_values": "base_img",
    "input_features": "base_speech",
    "input_values": "base_sound",
}
"""Kind of batch of a model without a head, by the name of its input."""
DEFAULT_IMAGE = 224
DEFAULT_MELS, DEFAULT_FRAMES = 80, 3000


@dataclass(frozen=True, slots=True)
class BuiltCase:
    """The parts that a training step needs."""

    model: nn.Module
    batch: dict[str, Tensor]
    loss: Callable[[], Tensor]


def class_of(case: Case) -> tuple[type, Any] | None:
    """Return the transformers class of a case and its config; None for another kind of
    model.

    Imports the class's module, which can take a second.

    Raises:
        SpecInvalid: no such class, or a config that it refuses.
    """
    model = case.model
    if "config" not in model:
        return None
    import transformers

    from placement.planner.sandbox import transformers_build

    if "hf_class" not in model:
        return transformers_build.class_and_config(model["config"])
    made, of_config = (
        getattr(transformers, model[name], None)
        for name in ("hf_class", "config_class")
    )
    if not (
        isinstance(made, type)
        and issubclass(made, transformers.PreTrainedModel)
        and isinstance(of_config, type)
        and issubclass(of_config, transformers.PretrainedConfig)
    ):
        raise SpecInvalid({"model": "names classes that transformers does not have"})
    transformers_build.check_numbers(model["config"])
    try:
        return made, of_config(**model["config"])
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise SpecInvalid({"model.config": f"is refused: {text}"}) from error


def build(case: Case, known: tuple[type, Any] | None) -> BuiltCase:
    """Make model and batch. Inside a StepMode they are phantoms.

    Raises:
        SpecInvalid: the model cannot be built.
    """
    config = None
    if known is not None:
        model = of_transformers(case, *known)
        config = known[1]
    elif "entry" in case.model:
        from placement.planner.sandbox.entry_build import built

        model = built(EntryPoint.read(case.model["entry"]))
        config = getattr(model, "config", None)
    else:
        model = network(case.model["torch"], dict(case.model["args"]))
    dtype = DTYPES.get(case.precision, torch.float32)
    model.to(dtype)
    if case.adapter is not None:
        adapt(model, case.adapter)
    freeze(model, case.frozen)
    model.train(case.trains)
    if case.checkpointing:
        _checkpoint(model)
    given = filled(dict(case.input), model, config)
    batch = make_batch(given, dtype)
    kind = given["kind"]
    if kind == "lm" and not case.trains:
        return BuiltCase(model, batch, lambda: first_token_of(model, batch["x"]))
    return BuiltCase(model, batch, lambda: loss_of(model, kind, batch))


def of_transformers(case: Case, made: Any, config: Any) -> nn.Module:
    """Return a model of the transformers library with random weights."""
    from transformers import initialization

    if getattr(config, "is_encoder_decoder", False):
        for name in ("decoder_start_token_id", "pad_token_id"):
            if getattr(config, name, None) is None:
                setattr(config, name, 0)
    if "hf_class" not in case.model:
        # A config.json has the type in which its weights are stored, but the case
        # decides.
        config.dtype = torch.float32
    try:
        with initialization.no_init_weights():
            model = _with_attention(made, config, case.model["attn"])
        model.tie_weights()
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise SpecInvalid({"model.config": f"cannot be built: {text}"}) from error
    return model


def _with_attention(made: Any, config: Any, wanted: str) -> Any:
    """Return a model with SDPA if its family has it, and eager attention otherwise.

    transformers refuses SDPA for a family that lacks it, also for a part of a model,
    such as the backbone of a detector.
    """
    first = wanted if getattr(made, "_supports_sdpa", True) else "eager"
    try:
        return made._from_config(config, attn_implementation=first)
    except ValueError as error:
        if first == "eager" or "attention implementation" not in str(error):
            raise
    return made._from_config(config, attn_implementation="eager")


def _checkpoint(model: nn.Module) -> None:
    enable = getattr(model, "gradient_checkpointing_enable", None)
    if enable is None:
        raise SpecInvalid({"checkpointing": "this model has no layers to checkpoint"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        enable()


def filled(given: dict[str, Any], model: nn.Module, config: Any) -> dict[str, Any]:
    """Return the fields of a batch, with missing ones derived from the model."""
    name = type(model).__name__
    if "kind" not in given:
        given["kind"] = next(
            (k for end, k in TASKS if name.endswith(end)), _headless(model, config)
        )
        if given["kind"] == "seq2seq" and hasattr(config, "num_mel_bins"):
            given["kind"] = "speech"
    elif given["kind"] == "seq2seq" and hasattr(config, "num_mel_bins"):
        given["kind"] = "speech"

    def read(*names: str, default: int) -> int:
        for one in names:
            value = getattr(config, one, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        return default

    text = getattr(config, "text_config", None)
    vocab = read("vocab_size", default=getattr(text, "vocab_size", 0) or 2**15)
    given.setdefault("vocab", vocab)
    given.setdefault("classes", read("num_labels", default=2))
    seen = getattr(config, "vision_config", None)
    size = getattr(seen, "image_size", None)
    given.setdefault(
        "size", size if type(size) is int else read("image_size", default=DEFAULT_IMAGE)
    )
    words = getattr(text, "max_position_embeddings", 0) or given.get("seq", 1)
    given.setdefault("words", min(words, given.get("seq", words)))
    given.setdefault("channels", read("num_channels", default=3))
    given.setdefault("mels", read("num_mel_bins", default=DEFAULT_MELS))
    source = 2 * read("max_source_positions", default=DEFAULT_FRAMES // 2)
    given.setdefault("frames", source)
    return given


def _headless(model: nn.Module, config: Any) -> str:
    """Return the kind of batch of a class whose name has no task."""
    if config is None:
        return "lm_plain"
    two = hasattr(config, "vision_config") and hasattr(config, "text_config")
    if two and hasattr(model, "logit_scale"):
        return "pairs"
    labelled = "labels" in signature(model.forward).parameters
    given = str(getattr(model, "main_input_name", "input_ids"))
    # Labels of a detector are boxes, so its outputs alone are followed.
    plain = BASE_INPUTS.get(given, "base")
    return "lm" if labelled and plain != "base_img" else plain


def make_batch(given: dict[str, Any], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return inputs and labels. Text models use one tensor for both."""
    kind, count = given["kind"], given["batch"]

    def whole(most: int, *shape: int) -> Tensor:
        return torch.randint(0, max(1, most), (count, *shape))

    if kind in TEXT_KINDS:
        text = whole(given["vocab"], given["seq"])
        return {"x": text, "y": whole(2) if kind == "seqcls" else text}
    if kind == "seq2seq":
        source = whole(given["vocab"], given["seq"])
        return {"x": source, "y": whole(given["vocab"], given["tgt"])}
    if kind == "speech":
        sound = torch.randn(count, given["mels"], given["frames"], dtype=dtype)
        return {"x": sound, "y": whole(given["vocab"], given["tgt"])}
    if kind in ("ctc", "base_sound"):
        return {"x": torch.randn(count, given["seq"], dtype=dtype)}
    if kind == "base_speech":
        sound = torch.randn(count, given["mels"], given["frames"], dtype=dtype)
        return {"x": sound}
    if kind == "base":
        return {"x": whole(given["vocab"], given["seq"])}
    if kind == "cls_vec":
        vector = torch.randn(count, given["dim"], dtype=dtype)
        return {"x": vector, "y": whole(given["classes"])}
    size = given["size"]
    image = torch.randn(count, given["channels"], size, size, dtype=dtype)
    if kind == "base_img":
        return {"x": image}
    if kind == "pairs":
        return {"x": whole(given["vocab"], given["words"]), "image": image}
    labels = (size, size) if kind == "seg_img" else ()
    return {"x": image, "y": whole(given["classes"], *labels)}


def first_token_of(model: nn.Module, prompts: Tensor) -> Tensor:
    """Return the logits after the prompts, which `generate` reads with a cache.

    Most families of transformers then make logits for the last token only.
    """
    known = signature(model.forward).parameters
    given = {"use_cache": True, "logits_to_keep": 1}
    return model(
        input_ids=prompts, **{name: one for name, one in given.items() if name in known}
    )[0][:, -1].float()


def loss_of(model: nn.Module, kind: str, batch: dict[str, Tensor]) -> Tensor:
    """Return the loss of one forward."""
    x = batch["x"]
    if kind == "pairs":
        pairs = model(input_ids=x, pixel_values=batch["image"], return_loss=True)
        return pairs.loss
    if kind.startswith("base"):
        return model(x)[0].float().mean()
    if kind == "ctc":
        # torch has no layout of the CTC loss. It keeps the log-probabilities.
        return functional.log_softmax(model(input_values=x).logits.float(), -1).mean()
    y = batch["y"]
    if hasattr(model, "config") and kind not in ("cls_vec", "seg_img", "lm_plain"):
        name = {"cls_img": "pixel_values", "speech": "input_features"}.get(
            kind, "input_ids"
        )
        cache = {"use_cache": False} if kind in ("lm", "seq2seq", "speech") else {}
        return model(**{name: x, "labels": y}, **cache).loss
    out = model(x)
    if kind == "lm_plain":
        return functional.cross_entropy(out.flatten(0, 1).float(), y.flatten())
    return functional.cross_entropy(out.float(), y)

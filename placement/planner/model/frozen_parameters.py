"""Freeze the parameters that a case names, if layers can be matched to the names.

A case gives parts of parameter names ("bert.embeddings", "layers.0.", "h.3.attn"). The
closed form has layers and components instead of names. It maps these parts by the
naming of Hugging Face's models, and it refuses a part that it cannot map.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from placement.planner.model.spec import LayerSpec, ModelSpec
from placement.planner.values.errors import SpecInvalid
from telemetry.protocol.sentences import sentence

_BLOCK = re.compile(r"(?:^|\.)(?:layers?|h|blocks?)\.(\d+)(?:\.|$)")
_EMBEDDING = ("embed", "wte", "wpe", "shared")
_HEAD = ("lm_head", "cls", "classifier", "score", "embed_out", "qa_outputs")
_BODY = (
    *("model", "transformer", "bert", "roberta", "vit", "electra", "distilbert"),
    *("gpt_neox", "encoder", "decoder", "backbone", "base_model"),
)
_COMPONENTS = {
    "attention": ("attn", "attention"),
    "mlp": ("mlp", "ffn", "feed_forward", "experts"),
    "norm": ("norm", "ln_"),
}
Chooses = Callable[[int, LayerSpec], bool]


def with_frozen(spec: ModelSpec, names: Sequence[str]) -> ModelSpec:
    """Return the model with the named parameters frozen. Raises SpecInvalid if it
    cannot.
    """
    for name in names:
        chooses = _chooses(name, spec)
        component = _component(name)
        if chooses is None and component is None:
            raise SpecInvalid(
                {
                    "freeze": sentence(
                        "'{name}' is not a known layer or component", name=name[:60]
                    )
                }
            )
        layers = tuple(
            _frozen(layer, component)
            if chooses is None or chooses(index, layer)
            else layer
            for index, layer in enumerate(spec.layers)
        )
        spec = replace(spec, layers=layers)
    return spec


def _chooses(name: str, spec: ModelSpec) -> Chooses | None:
    found = _BLOCK.search(name)
    if found:
        wanted = int(found[1])
        blocks = [
            index
            for index, layer in enumerate(spec.layers)
            if layer.kind not in ("embedding", "head")
        ]
        if "decoder" in name:
            decoders = [i for i in blocks if spec.layers[i].kind == "decoder"]
            blocks = decoders or blocks
        if wanted >= len(blocks):
            raise SpecInvalid(
                {"freeze": sentence("'{name}': there is no such layer", name=name[:60])}
            )
        return lambda index, layer: index == blocks[wanted]
    last = name.strip(".").split(".")[-1]
    if any(word in name for word in _EMBEDDING):
        return lambda index, layer: layer.kind == "embedding"
    if any(name.startswith(word) for word in _HEAD):
        return lambda index, layer: layer.kind == "head"
    if last in ("layers", "layer", "h", "blocks", "encoder", "decoder"):
        side = last if last in ("encoder", "decoder") else ""
        two = any(layer.kind == "decoder" for layer in spec.layers)
        return lambda index, layer: (
            layer.kind not in ("embedding", "head")
            and (not two or not side or layer.kind == side)
        )
    if name.strip(".") in _BODY:
        return lambda index, layer: layer.kind != "head"
    return None


def _component(name: str) -> str | None:
    last = name.strip(".").split(".")
    for component, words in _COMPONENTS.items():
        if any(word in part for part in last for word in words):
            return component
    return None


def _frozen(layer: LayerSpec, component: str | None) -> LayerSpec:
    parts = tuple(
        replace(one, frozen=True)
        if component in (None, one.component) and one.component != "adapter"
        else one
        for one in layer.parts
    )
    return replace(layer, parts=parts)

"""transformers' device_map for a Plan: module name -> Gpu.

Gpus are counted from 0 among the Plan's own, because a process sees only those. Module
names are those of transformers 5 (`model.named_modules()`).
"""

import re
from dataclasses import dataclass

from placement.planner.launch.files.launch_file_error import NoSuchLaunch, RenderedFile
from placement.planner.model.spec import ModelSpec
from placement.planner.values.plan import Plan
from placement.planner.values.strategies import strategy_of
from telemetry.protocol.sentences import sentence


@dataclass(frozen=True, slots=True)
class PartNames:
    """Names of the parts of a family in transformers."""

    blocks: str
    first: tuple[str, ...]
    last: tuple[str, ...]


_LLAMA = PartNames(
    "model.layers",
    ("model.embed_tokens", "model.rotary_emb"),
    ("model.norm", "lm_head"),
)
NAMES: dict[str, PartNames] = {
    "gpt2": PartNames(
        "transformer.h",
        ("transformer.wte", "transformer.wpe", "transformer.drop"),
        ("transformer.ln_f", "lm_head"),
    ),
    "opt": PartNames(
        "model.decoder.layers",
        ("model.decoder.embed_tokens", "model.decoder.embed_positions"),
        ("model.decoder.final_layer_norm", "lm_head"),
    ),
    "bloom": PartNames(
        "transformer.h",
        ("transformer.word_embeddings", "transformer.word_embeddings_layernorm"),
        ("transformer.ln_f", "lm_head"),
    ),
    "gpt_neox": PartNames(
        "gpt_neox.layers",
        ("gpt_neox.embed_in", "gpt_neox.emb_dropout", "gpt_neox.rotary_emb"),
        ("gpt_neox.final_layer_norm", "embed_out"),
    ),
    "falcon": PartNames(
        "transformer.h",
        ("transformer.word_embeddings", "transformer.rotary_emb"),
        ("transformer.ln_f", "lm_head"),
    ),
    "phi": PartNames(
        "model.layers",
        ("model.embed_tokens", "model.embed_dropout", "model.rotary_emb"),
        ("model.final_layernorm", "lm_head"),
    ),
} | dict.fromkeys(
    (
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen3",
        "qwen2_moe",
        "qwen3_moe",
        "gemma",
        "gemma2",
        "phi3",
        "olmoe",
    ),
    _LLAMA,
)
"""Families whose parts form one chain of blocks."""


def device_map(plan: Plan, spec: ModelSpec) -> RenderedFile:
    """Return the Gpu of every module of a model that is whole or cut into contiguous
    stages.

    Raises:
        NoSuchLaunch: the strategy copies or cuts layers, the weights are in the node's
            memory, or the family's names are not known.
    """
    launch = plan.launch
    if "device_map" not in strategy_of(launch["strategy"]).launchers:
        raise NoSuchLaunch(
            sentence(
                "A device map is for one process that holds each layer once; "
                "“{plan}” does not.",
                plan=plan.title,
            )
        )
    if launch["offload_parameters"]:
        raise NoSuchLaunch(
            sentence(
                "This plan keeps the weights in the node's memory and brings them "
                "layer by layer: use accelerate.cpu_offload(model)."
            )
        )
    names = NAMES.get(spec.family)
    if names is None or spec.head != "causal_lm":
        raise NoSuchLaunch(
            sentence(
                "Module names of {family} with this head are not known here.",
                family=spec.family,
            )
        )
    values: dict[str, int] = {}
    for place, layer in enumerate(spec.layers):
        gpu = next(
            number
            for number, shard in enumerate(plan.shards)
            if shard.first_layer <= place < shard.last_layer
        )
        if layer.kind == "embedding":
            modules = names.first
        elif layer.kind == "head":
            modules = names.last
        else:
            number = re.search(r"\d+$", layer.name)
            assert number is not None
            modules = (f"{names.blocks}.{number[0]}",)
        values |= dict.fromkeys(modules, gpu)
    note = sentence(
        "A device map runs stage after stage without overlap: for inference and tests."
    )
    return RenderedFile(dict(values), (note,) if len(plan.shards) > 1 else ())

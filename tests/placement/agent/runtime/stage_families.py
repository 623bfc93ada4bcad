"""Cut a tiny model of every known family into two stages, and compare gradients.

One process runs both stages, with recomputation, and the same model whole. Or each rank
of a mesh has its part of the layers of both stages.
"""

import json

import torch
from torch.distributed.tensor import DTensor

from placement.agent.runtime.model_stage import ModelStage, keep_layers, layers_of
from placement.agent.runtime.tiny_transformer import loss_of
from placement.agent.runtime.tp_plan import cut_by_family, is_tied
from placement.planner.launch.execution import NotRunnable
from placement.planner.launch.pipeline_families import PIPELINE_FAMILIES
from placement.planner.launch.tensor_families import TENSOR_FAMILIES
from tests.placement.agent.runtime.tiny_families import (
    EXPERTS,
    MIXTURES,
    WORDS,
    model_of,
)

SPECIAL = {
    "granite": {"embedding_multiplier": 3.0, "logits_scaling": 2.0},
    "starcoder2": {"embedding_dropout": 0.5, "residual_dropout": 0.0},
}
"""Family -> settings that the embedding has to apply once."""
LAYERS = 4
"""An embedding, two blocks and a head."""


def backward_of(stages, tokens):
    """Return the loss of consecutive stages, whose weights get gradients."""
    torch.manual_seed(1)
    x = tokens[:, :-1]
    ends = []
    for stage in stages:
        out = stage(x)
        ends.append((x, out))
        x = out.detach().requires_grad_()
    _, logits = ends[-1]
    loss = loss_of(logits, tokens[:, 1:])
    loss.backward()
    for (_, out), (given, _) in zip(ends[-2::-1], ends[:0:-1], strict=True):
        out.backward(given.grad)
    return loss.item()


def stages_of(family, cut, **changes):
    made = []
    for first, end in ((0, cut), (cut, LAYERS)):
        model = model_of(family, **changes).train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        keep_layers(model, first, end)
        made.append(
            ModelStage(model, first=first == 0, last=end == LAYERS, autocast=None)
        )
    return made


def compared(family, cut, mesh=None, **changes):
    """Return how far two stages are from the whole model.

    Their layers and sequences are cut over a mesh, if there is one.
    """
    whole = model_of(family, **changes).train()
    layers = layers_of(whole)
    tokens = torch.randint(0, WORDS, (2, 9), generator=torch.Generator().manual_seed(0))
    loss = backward_of(
        [ModelStage(whole, first=True, last=True, autocast=None)], tokens
    )
    stages = stages_of(family, cut, **changes)
    for stage in stages if mesh else ():
        cut_by_family(stage.model, mesh, along=True, tied=is_tied(whole))
    other = backward_of(stages, tokens)
    expected = {name: p.grad for name, p in whole.named_parameters()}
    found = {}
    for number, stage in enumerate(stages):
        head, table = (
            stage.model.get_output_embeddings(),
            stage.model.get_input_embeddings(),
        )
        for name, param in stage.model.named_parameters():
            shared = number and is_tied(whole) and param is getattr(head, "weight", 0)
            if not shared:
                assert (layers[name] >= cut) == bool(number), name
            key = "shared" if shared else name
            found[key] = param.grad
            if isinstance(param.grad, DTensor):
                assert param.grad.placements == param.placements, name
                found[key] = param.grad.full_tensor()
            if not number and is_tied(whole) and param is table.weight:
                owner = key
    if is_tied(whole):
        found[owner] = found[owner] + found.pop("shared")
    assert found.keys() == expected.keys(), family
    far = max(
        float((grad - found[name]).abs().max() / (grad.abs().max() + 1e-9))
        for name, grad in expected.items()
        if grad is not None
    )
    return {"loss": abs(loss - other), "gradient": far}


def refusal(family, **changes):
    try:
        layers_of(model_of(family, **changes))
    except NotRunnable as error:
        return str(error)
    return ""


def comparisons(families, mesh=None):
    """Return family -> results."""
    seen = {}
    for number, family in enumerate(sorted(families)):
        changes = EXPERTS if family in MIXTURES else {}
        changes = changes | SPECIAL.get(family, {})
        tied = bool(number % 2)
        # Each cut is tried: behind the embedding, between blocks, before the head.
        seen[family] = compared(
            family, 1 + number % 3, mesh, tie_word_embeddings=tied, **changes
        )
    return seen


def comparisons_on(mesh):
    """Return the comparisons of families whose layers can be cut."""
    return comparisons(TENSOR_FAMILIES & PIPELINE_FAMILIES, mesh)


def write_comparisons(path):
    """Write family -> results."""
    refused = refusal("gpt_oss", **EXPERTS)
    path.write_text(
        json.dumps({"cut": comparisons(PIPELINE_FAMILIES), "refused": refused})
    )

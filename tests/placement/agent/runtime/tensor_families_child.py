"""Cut a tiny model of every known family over two ranks, and compare gradients.

    python -m tests.placement.agent.runtime.tensor_families_child FILE STAGES

Each family is compared with the same model in one process, over two microbatches, and
once more in two stages. Rank 0 writes FILE: family -> results. Before, one process
writes STAGES: the comparison of `stage_families`. The ranks are forked from it, so the
families are imported once.
"""

import json
import os
import sys
from pathlib import Path

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy

from placement.agent.runtime.fine_tune_worker import import_transformers
from placement.agent.runtime.lora_adapters import with_adapters
from placement.agent.runtime.loss_scale import local
from placement.agent.runtime.rank_groups import begin
from placement.agent.runtime.tiny_transformer import loss_of
from placement.agent.runtime.tp_plan import cut_by_family
from placement.planner.launch.execution import NotRunnable
from placement.planner.launch.tensor_families import (
    IMAGE_FAMILIES,
    TENSOR_FAMILIES,
    why_not_sequences,
)
from tests.placement.agent.runtime.forked_ranks import fork_ranks
from tests.placement.agent.runtime.stage_families import (
    comparisons_on,
    write_comparisons,
)
from tests.placement.agent.runtime.tiny_families import (
    EXPERTS,
    MIXTURES,
    WORDS,
    model_of,
)

ADAPTERS = {
    "lora_rank": 2,
    "lora_targets": "all-linear",
    "lora_alpha": 0,
    "lora_dropout": 0.0,
    "seed": 5,
}
UNROTATED = ("deit", "opt", "vit")
"""Families with a bias of keys and without rotary positions."""
UNTIED = ("gpt2", "llama", "mixtral", "phi3", "qwen3")
REFUSED = {
    "bloom": {"along": True},
    "gpt2": {"hidden_size": 24, "num_attention_heads": 3},
    "gpt_bigcode": {},
    "gpt_oss": EXPERTS,
    "llama": {
        "hidden_size": 24,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
    },
    "mixtral": EXPERTS | {"intermediate_size": 33},
    "opt": {"along": True},
}
"""Family -> sizes with which it cannot be cut."""


def gradients(model):
    """Return the loss of two microbatches and every whole gradient by name."""
    draw = torch.Generator().manual_seed(0)
    total = 0.0
    for _ in range(2):
        tokens = torch.randint(0, WORDS, (2, 9), generator=draw)
        if model.main_input_name == "pixel_values":
            images = torch.rand((2, 3, 8, 8), generator=draw)
            loss = cross_entropy(model(images).logits, tokens[:, 0]) / 2
        else:
            logits = model(tokens[:, :-1], use_cache=False).logits
            loss = loss_of(logits.float(), tokens[:, 1:]) / 2
        loss.backward()
        total += loss.item()
    found = {}
    for name, param in model.named_parameters():
        grad = param.grad
        if isinstance(grad, DTensor):
            assert grad.placements == param.placements, name
            grad = grad.full_tensor()
        if grad is not None:
            found[name] = grad
    return total, found


def compared(family, mesh, *, along, adapters=False, **changes):
    """Return how far a cut model is from a whole one, and a rank's part of it."""
    whole, cut = model_of(family, **changes), model_of(family, **changes)
    for model in (whole, cut) if adapters else ():
        with_adapters(model, ADAPTERS)
        for name, param in model.named_parameters():
            if "lora_B" in name:
                # They begin as zeros, with which the others have no gradient.
                torch.nn.init.normal_(param, std=0.02)
    count = sum(p.numel() for p in whole.parameters())
    cut_by_family(cut, mesh, along=along)
    (loss, grads), (other, others) = gradients(whole), gradients(cut)
    assert grads.keys() == others.keys(), family
    for name in [n for n in grads if family in UNROTATED and "k_proj.bias" in n]:
        # The attention does not depend on it, so there is rounding only.
        assert max(grads.pop(name).abs().max(), others[name].abs().max()) < 1e-9
    far = max(
        float((grad - others[name]).abs().max() / (grad.abs().max() + 1e-9))
        for name, grad in grads.items()
    )
    own = sum(local(p.data).untyped_storage().nbytes() for p in cut.parameters())
    return {"loss": abs(loss - other), "gradient": far, "part": own / (4 * count)}


def refusal(family, mesh, *, along=False, **changes):
    try:
        cut_by_family(model_of(family, **changes), mesh, along=along)
    except NotRunnable as error:
        return str(error)
    return ""


def rank_main(path, environ):
    os.environ |= environ
    begin()
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    seen = {}
    for family in sorted(TENSOR_FAMILIES):
        changes = EXPERTS if family in MIXTURES else {}
        along = not why_not_sequences(family)
        seen[family] = compared(
            family, mesh, along=along, tie_word_embeddings=True, **changes
        )
        if family in UNTIED:
            seen[f"{family} untied"] = compared(
                family, mesh, along=False, tie_word_embeddings=False, **changes
            )
    for family in sorted(IMAGE_FAMILIES):
        seen[family] = compared(family, mesh, along=False)
    seen["gpt2 adapters"] = compared("gpt2", mesh, along=False, adapters=True)
    refused = {
        family: refusal(family, mesh, **changes) for family, changes in REFUSED.items()
    }
    found = {"cut": seen, "refused": refused, "stages": comparisons_on(mesh)}
    if distributed.get_rank() == 0:
        Path(path).write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    import_transformers()
    write_comparisons(Path(sys.argv[2]))
    fork_ranks(rank_main, "2", sys.argv[1])

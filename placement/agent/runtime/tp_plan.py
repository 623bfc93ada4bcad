"""Cut the layers of a Hugging Face model over GPUs, as its family's plan says.

transformers has a tensor-parallel plan of most families: the names of their linear
layers, and which dimension of each is cut (``base_model_tp_plan`` of the family's
configuration, huggingface.co/docs/transformers/perf_infer_gpu_multi). Families without
one have a plan here. The cut weights are DTensors, so checkpoints, the optimizer and
the export see whole tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from placement.agent.runtime.sharded_model import placed
from placement.planner.launch.execution import not_cut
from placement.planner.launch.tensor_families import (
    IMAGE_FAMILIES,
    why_not_heads,
    why_not_sequences,
)

PACKED = "packed_colwise"
SUMMED = "replicated_with_grad_allreduce"
"""Whole weights of norms over the heads of one rank: their gradients are parts."""
HIDDEN = "hidden_states"
"""The argument of transformers' blocks, attentions and MLPs."""
Change = Callable[[torch.Tensor], torch.Tensor]
OWN_STYLES = {
    *("conv1d_colwise", "conv1d_rowwise", "conv1d_packed", "packed_colwise_3"),
    *("local_table", "own_heads_bias"),
}
"""Styles of `placement.agent.runtime.tensor_styles`."""
KNOWN_STYLES = OWN_STYLES | {
    *("colwise", "colwise_gather_output", "rowwise", "rowwise_split_input"),
    *("embedding_rowwise", "embedding_colwise", "moe_tp_experts"),
    *(PACKED, SUMMED),
}
"""Styles with which gradients were compared with those of one process. The others of
transformers are for attention with a latent (MLA) and for sinks.
"""
IMAGE_LAYERS = {
    "layers.*.attention.q_proj": "colwise",
    "layers.*.attention.k_proj": "colwise",
    "layers.*.attention.v_proj": "colwise",
    "layers.*.attention.o_proj": "rowwise",
    "layers.*.mlp.fc1": "colwise",
    "layers.*.mlp.fc2": "rowwise",
}
"""Plan within the base model of an image classifier."""
OWN_PLANS: Mapping[str, Mapping[str, str]] = {
    **{
        family: {f"{family}.{name}": style for name, style in IMAGE_LAYERS.items()}
        for family in IMAGE_FAMILIES
    },
    "bloom": {
        "transformer.word_embeddings": "embedding_rowwise",
        "transformer.h.*.self_attention": "own_heads_bias",
        "transformer.h.*.self_attention.query_key_value": "colwise",
        "transformer.h.*.self_attention.dense": "rowwise",
        "transformer.h.*.mlp.dense_h_to_4h": "colwise",
        "transformer.h.*.mlp.dense_4h_to_h": "rowwise",
        "lm_head": "colwise_gather_output",
    },
    "gpt2": {
        "transformer.wte": "embedding_rowwise",
        "transformer.wpe": "embedding_colwise",
        "transformer.h.*.attn.c_attn": "conv1d_packed",
        "transformer.h.*.attn.c_proj": "conv1d_rowwise",
        "transformer.h.*.mlp.c_fc": "conv1d_colwise",
        "transformer.h.*.mlp.c_proj": "conv1d_rowwise",
        "lm_head": "colwise_gather_output",
    },
    "opt": {
        "model.decoder.embed_tokens": "embedding_rowwise",
        "model.decoder.embed_positions": "local_table",
        "model.decoder.layers.*.self_attn.q_proj": "colwise",
        "model.decoder.layers.*.self_attn.k_proj": "colwise",
        "model.decoder.layers.*.self_attn.v_proj": "colwise",
        "model.decoder.layers.*.self_attn.out_proj": "rowwise",
        "model.decoder.layers.*.fc1": "colwise",
        "model.decoder.layers.*.fc2": "rowwise",
        "lm_head": "colwise_gather_output",
    },
}
"""Family -> plan, of families for which transformers has none."""
DIVIDED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "bloom": {"transformer.h.*.self_attention": ("num_heads",)},
    "gpt2": {"transformer.h.*.attn": ("num_heads", "split_size")},
    "opt": {"model.decoder.layers.*.self_attn": ("num_heads",)},
}
"""Family -> module -> attributes that become those of one rank."""
SIDES: Mapping[str, Mapping[str, str]] = {
    "conv1d_colwise": {"B.default": "colwise"},
    "conv1d_rowwise": {"A.default": "rowwise"},
    "conv1d_packed": {"B.default": "packed_colwise_3"},
}
"""Style of a layer of ours -> styles of the sides of its adapter."""


class Packing(NamedTuple):
    """Matrices in one parameter that are cut separately."""

    matrices: int
    dim: int
    """They lie side by side along this dimension, counted from the last."""


PACKINGS = {
    PACKED: Packing(2, -2),
    "packed_colwise_3": Packing(3, -2),
    "conv1d_packed": Packing(3, -1),
}
"""Style -> packing of its weights."""


def cut_by_family(
    model: Any, mesh: DeviceMesh, *, along: bool = False, tied: bool | None = None
) -> None:
    """Cut a model in place, and move its parts to the mesh's device.

    Every rank needs the same whole weights. Nothing is sent.

    Args:
        model: a language model of transformers with its weights, or a piece of it, or
            an image classifier. It may have adapters of PEFT.
        mesh: the tensor ranks.
        along: also cut activations between attention and MLP along the sequence.
        tied: whether the head of the whole model has the weight of the table. None:
            the model itself is whole.

    Raises:
        NotRunnable: the family has no plan, or its sizes cannot be shared evenly.
    """
    if along and (why := why_not_sequences(model.config.model_type)):
        raise not_cut(why)
    is_whole = tied is None
    tied = is_tied(model) if tied is None else tied
    styles = _styles_of(model, tied=tied)
    _check_sizes(model, styles, mesh.size())
    _divide_attributes(model, mesh.size())
    summed = [name for name, style in styles.items() if style == SUMMED]
    _apply(model, mesh, {n: s for n, s in styles.items() if s != SUMMED})
    # Before hooks and ties: in torch 2.13 Module.to drops the hooks of a DTensor, even
    # of one that is on the device already.
    model.to(mesh.device_type)
    table = model.get_input_embeddings()
    weight = getattr(table, "weight", None)
    if tied and is_whole:
        model.get_output_embeddings().weight = weight
    elif tied and isinstance(weight, DTensor) and weight.requires_grad:
        weight.register_hook(partial(_cut_like, weight.placements))
    if along:
        summed += _cut_sequences(model, styles, mesh)
    _add_gradient_sums(model, summed, mesh)


def _cut_like(placements: Any, grad: torch.Tensor) -> torch.Tensor:
    """Return a gradient cut like its weight. That of a table alone is whole."""
    assert isinstance(grad, DTensor)
    return grad.redistribute(placements=placements)


def packings(model: Any) -> dict[str, Packing]:
    """Return the parameters that hold several matrices, with their packing."""
    plan = _plan_of(model)
    found = {}
    for name, param in model.named_parameters():
        path, _, last = name.rpartition(".")
        style = plan.get(_any_layer(name)) or _style_of(path, plan)
        if style in PACKINGS and last != "bias" and param.ndim > 1:
            found[name] = PACKINGS[style]
    return found


def unpacked(value: Any, packing: Packing) -> torch.Tensor:
    """Return a view of a packed parameter with a dimension for its matrices.

    torch's checkpoints cannot store parts of all matrices as one part of the whole
    (torch.distributed.checkpoint, torch 2.13). In the view each part is contiguous.
    """
    if value.ndim < 2:
        return value
    count, at = packing.matrices, value.ndim + packing.dim
    if not isinstance(value, DTensor):
        return value.unflatten(at, (count, -1))
    width, *after = value.shape[at:]
    shape = torch.Size((*value.shape[:at], count, width // count, *after))
    before: list[Any] = list(value.placements)
    places = [
        Shard(place.dim + 1) if not place.is_replicate() and place.dim >= at else place
        for place in before
    ]
    return DTensor.from_local(
        value.to_local().unflatten(at, (count, -1)),
        value.device_mesh,
        places,
        run_check=False,
        shape=shape,
        stride=torch.empty(shape, device="meta").stride(),
    )


def _apply(model: nn.Module, mesh: DeviceMesh, styles: Mapping[str, str]) -> None:
    """Cut parameters and change the forward of their modules."""
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    if OWN_STYLES & {*styles.values()}:
        import placement.agent.runtime.tensor_styles  # noqa: F401

    apply_tensor_parallelism(model, mesh, dict(styles))
    for module in model.modules():
        for name, param in module.named_parameters(recurse=False):
            if isinstance(param, DTensor):
                module.register_parameter(name, _with_own_storage(param))


def _with_own_storage(param: nn.Parameter) -> nn.Parameter:
    """Return a parameter whose part has its own memory.

    A part along the first dimension is a view that keeps the whole tensor alive.
    """
    whole: Any = param.data
    part = whole.to_local()
    if part.untyped_storage().nbytes() == part.nbytes:
        return param
    copy = DTensor.from_local(
        part.clone(),
        whole.device_mesh,
        whole.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )
    return nn.Parameter(copy, requires_grad=param.requires_grad)


def _cut_sequences(
    model: nn.Module, styles: Mapping[str, str], mesh: DeviceMesh
) -> list[str]:
    """Give each rank a part of the sequence between the parts of a block that are cut.

    Norms and residual sums then have a part of the tokens (Korthikanti et al.,
    arXiv:2205.05198). Return the parameters whose gradients are parts for that reason.
    """
    modules = dict(model.named_modules())
    parts: dict[str, set[str]] = {}
    for name in styles:
        if one := re.match(r"(.*?\.\d+)\.(\w+)", name):
            parts.setdefault(one[1], set()).add(one[2])
    gather = partial(placed, mesh=mesh, old=Shard(1), new=Replicate())
    split = partial(placed, mesh=mesh, old=Replicate(), new=Shard(1))
    partial_names: list[str] = []
    for block, cut in parts.items():
        for child in cut:
            _on_input(modules[f"{block}.{child}"], gather)
            _on_output(modules[f"{block}.{child}"], split)
        partial_names += [
            f"{block}.{name}"
            for name, _ in modules[block].named_parameters()
            if name.partition(".")[0] not in cut
        ]
    blocks = [modules[block] for block in parts]
    if blocks:
        _on_input(blocks[0], split)
        _on_output(blocks[-1], gather)
    return partial_names


def _on_input(module: nn.Module, change: Change) -> None:
    """Change the hidden states that a module is called with."""

    def hook(_module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if args:
            return (change(args[0]), *args[1:]), kwargs
        return args, {**kwargs, HIDDEN: change(kwargs[HIDDEN])}

    module.register_forward_pre_hook(hook, with_kwargs=True)


def _on_output(module: nn.Module, change: Change) -> None:
    """Change the hidden states that a module returns, alone or before others."""

    def hook(_module: nn.Module, _args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (change(output[0]), *output[1:])
        return change(output)

    module.register_forward_hook(hook)


def _add_gradient_sums(model: nn.Module, names: list[str], mesh: DeviceMesh) -> None:
    """Sum gradients over the ranks before they are added to those that are there."""
    group = mesh.get_group()

    def summed(grad: torch.Tensor) -> torch.Tensor:
        whole = grad.clone()
        distributed.all_reduce(whole, group=group)
        return whole

    params = dict(model.named_parameters())
    for name in names:
        if name in params and params[name].requires_grad:
            params[name].register_hook(summed)


def is_tied(model: Any) -> bool:
    """Return whether the head has the weight of the table."""
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    return head is not None and head.weight is table.weight


def _styles_of(model: Any, *, tied: bool) -> dict[str, str]:
    """Return the style of each parameter and module, parameters before their module.

    Modules without weights, such as those of another piece, have none.

    Args:
        model: whole, or a piece.
        tied: the head of the whole model has the weight of the table.

    Raises:
        NotRunnable: the family has no plan that trains.
    """
    plan = _plan_of(model)
    family = model.config.model_type
    found: dict[str, str] = {}
    names = {module: name for name, module in model.named_modules()}
    for module, name in names.items():
        if not any(True for _ in module.parameters()):
            continue
        own = _style_of(name, plan)
        for part, _ in module.named_parameters(recurse=False):
            path = f"{name}.{part}" if name else part
            if style := plan.get(_any_layer(path)) or own:
                found[path] = style
        if own and not hasattr(module, "base_layer"):
            found[name] = own
    table = names[model.get_input_embeddings()]
    if tied:
        # The head has the table's weight, and is cut like it or not at all.
        head = names[model.get_output_embeddings()]
        if table in found:
            found.pop(f"{head}.weight", None)
        if _style_of(table, plan) != "embedding_rowwise":
            found.pop(f"{head}.weight", None)
            found.pop(head, None)
    elif table in found:
        # By rows the table's gradient would stay whole.
        found |= {name: "embedding_colwise" for name in (f"{table}.weight", table)}
    if not any("*" in name for name in plan):
        raise not_cut(f"there is no tensor-parallel plan of family {family}")
    if unknown := sorted({*found.values()} - KNOWN_STYLES):
        raise not_cut(
            f"the tensor-parallel plan of family {family} has parts that the recipe "
            f"cannot train: {', '.join(unknown)}"
        )
    return found


def _plan_of(model: Any) -> Mapping[str, str]:
    """Return the plan of a model: its names with ``*``, and the style of each."""
    return OWN_PLANS.get(model.config.model_type) or model.tp_plan or {}


def _divide_attributes(model: Any, width: int) -> None:
    """Set the sizes that a family's attention reads to those of one rank."""
    divided = DIVIDED.get(model.config.model_type, {})
    for name, module in model.named_modules():
        for attribute in divided.get(_any_layer(name), ()):
            # A module of another stage has none.
            if size := getattr(module, attribute, None):
                setattr(module, attribute, size // width)


def _style_of(name: str, plan: Mapping[str, str]) -> str:
    """Return the style of a module; "": it is not cut.

    The side of an adapter that has the cut dimension of its layer is cut like it. The
    other side has the small rank and stays whole.
    """
    layer, _, side = name.rpartition(".lora_")
    style = plan.get(_any_layer(layer or name.removesuffix(".base_layer")), "")
    if not layer:
        return style
    if style in SIDES:
        return SIDES[style].get(side, "")
    cut = {"A.default": "rowwise", "B.default": "colwise"}.get(side, "none")
    return style if style.startswith(cut) else ""


def _any_layer(name: str) -> str:
    """Return the name of a module with ``*`` for each number, as plans have it.

    >>> _any_layer("model.layers.11.mlp")
    'model.layers.*.mlp'
    """
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def _check_sizes(model: Any, styles: Mapping[str, str], width: int) -> None:
    """Raise NotRunnable unless every rank gets as many heads and as wide experts."""
    sizes = model.config.get_text_config()
    heads = sizes.num_attention_heads
    kv_heads = getattr(sizes, "num_key_value_heads", None) or heads
    if why := why_not_heads(heads, kv_heads, width):
        raise not_cut(why)
    for name, param in model.named_parameters():
        packed = styles.get(name) == PACKED
        if packed and param.shape[-2] // 2 % width:
            inner = param.shape[-2] // 2
            raise not_cut(
                f"{width} GPUs share every expert, so {width} must divide its inner "
                f"width {inner}"
            )

"""The pieces of a Hugging Face model on one stage of a pipeline.

A stage has one piece, or with the interleaved schedule several. A piece keeps some
blocks of the model, the first piece also the embedding, the last one the final norm and
the head. The weights keep their names, so checkpoints do not depend on the cut. Modules
of other pieces are replaced by modules without weights that pass their input on, and
the model's own forward runs on the rest. Later pieces give it the hidden states as
``inputs_embeds``.

If the head has the table's weight, the first and the last stage both keep it. They add
up their gradients, so both take the same steps.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.tensor import DTensor

from placement.agent.runtime.loss_scale import local
from placement.agent.runtime.rank_groups import RankGroups
from placement.agent.runtime.tp_plan import is_tied
from placement.planner.launch.execution import Execution, RankPlace, not_cut
from placement.planner.launch.pipeline_families import why_not_family

NEUTRAL: Mapping[str, float] = {"embedding_multiplier": 1.0, "embedding_dropout": 0.0}
"""Attributes of families that change the output of the embedding (Granite,
StarCoder2), with the values of stages that have none.
"""


class Absent(nn.Module):
    """A module of another stage. It returns its first argument."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the hidden states."""
        return args[0] if args else kwargs["hidden_states"]


class AbsentTable(nn.Module):
    """A table of another stage. It returns zeros, which are added to hidden states."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return one zero for each number."""
        return torch.zeros((*numbers.shape, 1), dtype=self.dtype, device=numbers.device)


class ModelStage(nn.Module):
    """The forward of one piece, as torch's schedules call it."""

    def __init__(
        self, model: Any, *, first: bool, last: bool, autocast: torch.dtype | None
    ) -> None:
        """Take a model that `keep_layers` has cut."""
        super().__init__()
        self.model, self.first, self.last = model, first, last
        self.autocast = autocast

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the hidden states for the next piece, or the logits.

        Args:
            x: tokens, or the hidden states of the piece before.
        """
        given = {"input_ids" if self.first else "inputs_embeds": x, "use_cache": False}
        dtype = self.autocast
        with torch.autocast(x.device.type, dtype, enabled=dtype is not None):
            if self.last:
                logits: torch.Tensor = self.model(**given).logits
                return logits
            hidden: torch.Tensor = self.model.base_model(**given).last_hidden_state
            return hidden


def blocks_name(model: Any) -> str:
    """Return the name of the list of blocks within a model's base model.

    Raises:
        NotRunnable: the recipe does not know how to cut the family.
    """
    family = model.config.model_type
    if why := why_not_family(family):
        raise not_cut(why)
    count = model.config.get_text_config().num_hidden_layers
    found = [
        name
        for name, child in model.base_model.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == count
    ]
    if len(found) != 1 or model.base_model is model:
        raise not_cut(f"this model of family {family} has no single list of blocks")
    return found[0]


def layers_of(model: Any) -> dict[str, int]:
    """Return the layer that each weight belongs to, as a Plan counts the layers.

    The embedding is layer 0. The final norm and the head are the last layer.

    Raises:
        NotRunnable: the recipe does not know how to cut the family.
    """
    base, blocks = f"{model.base_model_prefix}.", blocks_name(model)
    children = [name for name, _ in model.base_model.named_children()]
    before = children[: children.index(blocks)]
    last = len(getattr(model.base_model, blocks)) + 1
    found = {}
    for name in model.state_dict():
        child, _, rest = name.removeprefix(base).partition(".")
        inside = name.startswith(base)
        if inside and child == blocks:
            found[name] = int(rest.partition(".")[0]) + 1
        else:
            found[name] = 0 if inside and child in before else last
    return found


def keep_layers(model: Any, first: int, end: int) -> None:
    """Remove all layers of a model but those from `first` up to `end`, in place.

    Raises:
        NotRunnable: the recipe does not know how to cut the family.
    """
    name, inner = blocks_name(model), model.base_model
    blocks = getattr(inner, name)
    last = len(blocks) + 1
    for number in range(len(blocks)):
        if not first <= number + 1 < end:
            blocks[number] = Absent()
    children = list(inner.named_children())
    place = [child for child, _ in children].index(name)
    for number, (child, module) in enumerate(children):
        holds = any(True for _ in module.parameters())
        if number == place or (not holds and any(True for _ in module.buffers())):
            # Positions (RoPE) have only buffers. Every stage needs them.
            continue
        is_early = number < place or isinstance(module, nn.Dropout)
        if first > 0 if is_early else end <= last:
            is_table = isinstance(module, nn.Embedding)
            setattr(inner, child, AbsentTable(model.dtype) if is_table else Absent())
    if first > 0:
        for attribute in NEUTRAL.keys() & vars(inner).keys():
            setattr(inner, attribute, NEUTRAL[attribute])
    if end <= last:
        for child, module in list(model.named_children()):
            if module is not inner:
                setattr(model, child, Absent())


class StageOfRank:
    """The stage of this rank, and what it shares with other stages."""

    def __init__(self, base: Any, whole: nn.Module, how: Execution, stage: int) -> None:
        """Cut a model into the pieces of a stage. The first piece is cut in place.

        Args:
            base: the language model of transformers, whole.
            whole: it, or PEFT's module around it.
            how: the Execution.
            stage: of this rank.

        Raises:
            NotRunnable: the model cannot be cut, or it has another number of blocks
                than that of the Plan.
        """
        self.how = how
        layers = layers_of(base)
        count = max(layers.values()) + 1
        if count != how.bounds[-1]:
            raise not_cut(
                f"the plan is for a model with {how.bounds[-1] - 2} blocks, and this "
                f"model has {count - 2}"
            )
        self.parameter_count = sum(p.numel() for p in whole.parameters())
        self.trainable_count = sum(
            p.numel() for p in whole.parameters() if p.requires_grad
        )
        inner = names_of(whole)[base]
        prefix = f"{inner}." if inner else ""
        head, table = base.get_output_embeddings(), base.get_input_embeddings()
        self.is_tied = is_tied(base)
        self.is_table_trained = table.weight.requires_grad
        self.head = f"{prefix}{names_of(base)[head]}.weight"
        self.table = f"{prefix}{names_of(base)[table]}.weight"
        frozen = {n for n, p in whole.named_parameters() if not p.requires_grad}
        named = {f"{prefix}{n}": n for n in layers}
        left_out = frozen | ({self.head} if self.is_tied else set())
        state = base.state_dict()
        self.weights = {
            name: (layers[own], state[own].shape, state[own].dtype)
            for name, own in named.items()
            if name not in left_out
        }
        self.first, self.last = stage == 0, stage == how.stages - 1
        self.numbers = how.pieces_of(stage)
        self.outline = _copy_with(whole, lambda tensor: tensor.to("meta"))
        """The whole model without its weights. PEFT saves adapters by its modules."""
        self.parts = [whole, *(_copy_with(whole, _same) for _ in self.numbers[1:])]
        self.bases: list[Any] = [part.get_submodule(inner) for part in self.parts]
        for number, piece in zip(self.numbers, self.bases, strict=True):
            keep_layers(piece, how.bounds[number], how.bounds[number + 1])
        self.shared: nn.Parameter | None = None
        self.group: Any = None

    def module(self, part: nn.Module, autocast: torch.dtype | None) -> ModelStage:
        """Return the module of one of its parts for torch's schedules."""
        place = next(n for n, one in enumerate(self.parts) if one is part)
        number = self.numbers[place]
        return ModelStage(
            self.bases[place],
            first=number == 0,
            last=number == len(self.how.bounds) - 2,
            autocast=autocast,
        )

    def make_groups(self, ranks: RankGroups) -> None:
        """Create the groups of the two stages that share a weight.

        All ranks call it, after the layers of the pieces have been cut.
        """
        if not self.is_tied:
            return
        how = self.how
        for replica in range(how.replicas):
            for part in range(how.tensor_degree):
                pair = [
                    how.places.index(RankPlace(stage, replica, part))
                    for stage in (0, how.stages - 1)
                ]
                group = distributed.new_group(pair)
                if ranks.rank in pair:
                    self.group = group
        if self.is_table_trained and self.first:
            self.shared = self.bases[0].get_input_embeddings().weight
        elif self.is_table_trained and self.last:
            self.shared = self.bases[-1].get_output_embeddings().weight

    def sum_shared(self) -> None:
        """Add up the gradients of the weight that two stages have."""
        if self.shared is not None:
            if self.shared.grad is None:
                self.shared.grad = torch.zeros_like(self.shared)
            distributed.all_reduce(local(self.shared.grad), group=self.group)

    @property
    def counted_elsewhere(self) -> nn.Parameter | None:
        """Return the weight of this stage that the first stage has too."""
        return None if self.first else self.shared

    def named_once(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the optimizer's state with one name of a weight that has two."""
        if not self.is_tied:
            return dict(state)
        old, new = f"optimizer.{self.head}.", f"optimizer.{self.table}."
        return {
            new + name.removeprefix(old) if name.startswith(old) else name: value
            for name, value in state.items()
        }

    def gathered(
        self, kept: Mapping[str, torch.Tensor], ranks: RankGroups
    ) -> dict[str, torch.Tensor]:
        """Return the whole trained weights on rank 0, in the node's memory.

        All ranks must call it. The others get {}.

        Args:
            kept: this rank's weights by name.
            ranks: of this process.
        """
        found: dict[str, torch.Tensor] = {}
        bounds = self.how.bounds
        for name, (layer, shape, dtype) in self.weights.items():
            piece = next(n for n, end in enumerate(bounds[1:]) if layer < end)
            stage = piece % self.how.stages
            owner = self.how.places.index(RankPlace(stage, 0, 0))
            if ranks.place.stage == stage:
                own = kept[name].detach()
                # All tensor ranks of the stage must call full_tensor.
                value = own.full_tensor() if isinstance(own, DTensor) else own
                if ranks.rank == owner == 0:
                    found[name] = value.cpu()
                elif ranks.rank == owner:
                    distributed.send(value.contiguous(), 0)
            if ranks.rank == 0 != owner:
                value = torch.empty(shape, dtype=dtype, device=ranks.device)
                distributed.recv(value, owner)
                found[name] = value.cpu()
        return found


def _copy_with(
    model: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]
) -> nn.Module:
    """Return a copy of a model's modules with other parameters and buffers.

    Args:
        model: it stays as it is.
        change: returns the tensor of the copy for a tensor of the model.
    """
    others: dict[int, Any] = {id(one): change(one) for one in model.buffers()}
    for one in model.parameters():
        other = change(one)
        if other is not one:
            other = nn.Parameter(other.detach(), requires_grad=one.requires_grad)
        others[id(one)] = other
    return copy.deepcopy(model, others)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def names_of(model: nn.Module) -> dict[nn.Module, str]:
    """Return the name of each module within a model."""
    return {module: name for name, module in model.named_modules()}

"""Apply data parallelism, ZeRO and tensor parallelism to a model and its optimizer.

ZeRO-1 is torch's ZeroRedundancyOptimizer; with uneven shares its partition is the
Plan's. ZeRO-2 and 3 are FSDP2 (fully_shard) without and with resharding after the
forward. HSDP is FSDP2 on a grid: shards inside a node, copies of them across nodes
(Zhao et al., arXiv:2304.11277). Tensor parallelism cuts the heads of the attention and
the inner width of the MLP (Shoeybi et al., arXiv:1909.08053). Sequence parallelism also
cuts the activations between them along the sequence (Korthikanti et al.,
arXiv:2205.05198).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from placement.agent.runtime.loss_scale import local
from placement.agent.runtime.offload import HostStep
from placement.agent.runtime.tiny_transformer import TinyTransformer
from placement.planner.launch.execution import Execution, parts_by_share

LOWER = {"autocast_bf16": torch.bfloat16, "autocast_fp16": torch.float16}
"""The type in which a mixed precision computes."""
KINDS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, float]]] = {
    "adamw": (torch.optim.AdamW, {}),
    "adam": (torch.optim.Adam, {}),
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
}


def cut_layers(model: TinyTransformer, mesh: DeviceMesh, *, along: bool) -> None:
    """Cut every block, the tables and the head across the ranks of a mesh, in place.

    Args:
        model: whole, or one stage.
        mesh: the tensor ranks of this stage and replica.
        along: also cut activations between attention and MLP along the sequence.
    """
    rows = RowwiseParallel(output_layouts=Shard(1) if along else Replicate())
    columns = ColwiseParallel()
    plan: dict[str, Any] = {
        "attention.query": columns,
        "attention.key": columns,
        "attention.value": columns,
        "attention.out": rows,
        "mlp.up": columns,
        "mlp.down": rows,
    }
    if along:
        whole = PrepareModuleInput(
            input_layouts=Shard(1),
            desired_input_layouts=Replicate(),
            use_local_output=True,
        )
        norm = SequenceParallel(use_local_output=True)
        plan |= {"norm1": norm, "norm2": norm, "attention": whole, "mlp": whole}
    for block in model.blocks.values():
        parallelize_module(block, mesh, plan)
    # All by columns and joined at once. By rows a table's gradient would stay whole.
    joined = ColwiseParallel(output_layouts=Replicate())
    ends = {"token": joined, "position": joined, "head": joined}
    here = {name for name, part in model.named_children() if part is not None}
    parallelize_module(model, mesh, {n: how for n, how in ends.items() if n in here})
    if along and len(model.blocks):
        _split_sequence(model, mesh)


def _split_sequence(model: TinyTransformer, mesh: DeviceMesh) -> None:
    """Give each block a part of the sequence, and join the results."""
    whole = model.through_blocks

    def through_blocks(x: torch.Tensor) -> torch.Tensor:
        x = placed(x, mesh, Replicate(), Shard(1))
        return placed(whole(x), mesh, Shard(1), Replicate())

    model.through_blocks = through_blocks  # type: ignore[method-assign]


def placed(
    x: torch.Tensor, mesh: DeviceMesh, old: Shard | Replicate, new: Shard | Replicate
) -> torch.Tensor:
    """Return this rank's part of a tensor that the ranks of a mesh divide otherwise.

    Args:
        x: this rank's part now.
        mesh: the ranks.
        old: how they divide it now.
        new: how they are to divide it.
    """
    whole = DTensor.from_local(x, mesh, [old], run_check=False)
    return whole.redistribute(mesh, [new]).to_local()


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return every member of a list of modules, the inner ones first."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList | nn.ModuleDict)]
    return [block for one in reversed(lists) for block in one.children()]


def share_out(
    model: nn.Module,
    how: Execution,
    mesh: DeviceMesh,
    *,
    lowers: bool = True,
    blocks: Sequence[nn.Module] | None = None,
) -> None:
    """Shard a model's weights among its copies with FSDP2, in place.

    Each block is gathered separately, the rest together.

    Args:
        model: whole.
        how: the Execution.
        mesh: the copies, or copies x shards (HSDP).
        lowers: in mixed precision its weights are gathered in 16 bits. Otherwise
            autocast converts them.
        blocks: the inner ones first, as fully_shard requires. None: `blocks_of` it.
    """
    cuda = mesh.device_type == "cuda"
    offload = CPUOffloadPolicy(pin_memory=cuda) if how.offload else OffloadPolicy()
    # Weights and gradients are sent in 16 bits. The optimizer keeps and steps fp32.
    lower = MixedPrecisionPolicy(LOWER.get(how.precision) if lowers else None)
    again = how.zero_stage == 3 or how.streams
    for part in (*(blocks_of(model) if blocks is None else blocks), model):
        fully_shard(
            part,
            mesh=mesh,
            reshard_after_forward=again,
            offload_policy=offload,
            mp_policy=lower,
        )


class UnevenZero(ZeroRedundancyOptimizer):
    """ZeRO-1 in which ranks own the Plan's shares, in whole tensors."""

    _partition_parameters_cache: list[Any]

    def __init__(self, params: Any, *, shares: Sequence[float], **kwargs: Any) -> None:
        """Take the parameters of one group, and a share by rank."""
        self._shares = tuple(shares)
        super().__init__(params, **kwargs)

    def _partition_parameters(
        self, params_per_rank: list[list[torch.Tensor]] | None = None
    ) -> list[list[dict[str, Any]]]:
        if params_per_rank is None and not self._partition_parameters_cache:
            (group,) = self.param_groups
            params = group["params"]
            parts = parts_by_share([p.numel() for p in params], self._shares)
            params_per_rank = [[params[n] for n in part] for part in parts]
        found: list[list[dict[str, Any]]] = super()._partition_parameters(  # type: ignore[misc]
            params_per_rank
        )
        return found


class OwnersStep:
    """ZeRO-1 for cut tensors, with its state in the node's memory.

    Each copy steps its own tensors, then sends them. ZeroRedundancyOptimizer supports
    neither DTensor nor optimizers outside torch.
    """

    def __init__(
        self,
        params: Sequence[nn.Parameter],
        group: Any,
        make: Any,
        shares: Sequence[float],
    ) -> None:
        """Take this rank's parameters, a function that makes an optimizer, and
        shares.
        """
        self.params, self.group = list(params), group
        sizes = [local(p.data).numel() for p in self.params]
        self.parts = parts_by_share(sizes, shares)
        mine = self.parts[distributed.get_rank(group)]
        self.own = make([self.params[n] for n in mine]) if mine else None

    @property
    def state(self) -> dict[Any, Any]:
        """Return the state of this rank."""
        return self.own.state if self.own else {}

    def zero_grad(self) -> None:
        """Clear all gradients."""
        for param in self.params:
            param.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Step the parameters of this rank, then receive those of the others."""
        if self.own:
            self.own.step()
        for owner, part in enumerate(self.parts):
            source = distributed.get_global_rank(self.group, owner)
            for number in part:
                distributed.broadcast(
                    local(self.params[number].data), source, group=self.group
                )


def optimizer_of(
    params: Sequence[nn.Parameter], how: Execution, *, group: Any, rate: float
) -> Any:
    """Return the optimizer of a rank's parameters, its state sharded as planned.

    Args:
        params: those of this rank.
        how: the Execution.
        group: the copies of these parameters.
        rate: the learning rate.
    """
    kind, extra = KINDS[how.optimizer]
    options: dict[str, Any] = {"lr": rate, "foreach": how.optimizer_loop == "foreach"}
    options |= extra
    cut = any(isinstance(p, DTensor) for p in params)
    # FSDP steps its shards in place. All others have copies there.
    host = how.offload and not how.shares_out

    def plain(own: Sequence[nn.Parameter]) -> Any:
        if host:
            return HostStep(own, lambda copies: _torch_optimizer(copies, kind, options))
        return _torch_optimizer(own, kind, options)

    if how.zero_stage == 1 and how.replicas > 1:
        if cut or host or how.stages > 1:
            equal = [1 / how.replicas] * how.replicas
            return OwnersStep(params, group, plain, how.shares or equal)
        options |= {"optimizer_class": kind, "process_group": group}
        if how.shares:
            return UnevenZero(params, shares=how.shares, **options)
        return ZeroRedundancyOptimizer(params, **options)
    return plain(params)


def _torch_optimizer(
    params: Sequence[nn.Parameter], kind: Any, options: dict[str, Any]
) -> torch.optim.Optimizer:
    """Return an optimizer. Cut and whole tensors are separate, because foreach cannot
    mix them.
    """
    cut = [p for p in params if isinstance(p, DTensor)]
    whole = [p for p in params if not isinstance(p, DTensor)]
    made: torch.optim.Optimizer = kind(
        [{"params": group} for group in (cut, whole) if group], **options
    )
    return made

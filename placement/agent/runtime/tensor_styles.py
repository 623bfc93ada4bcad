"""Styles by which layers are cut over GPUs, beside those of transformers.

GPT-2's linear layers are transformers' Conv1D, whose weight is [inputs, outputs].
transformers' styles expect [outputs, inputs]. OPT's table of positions is called with
a mask, and BLOOM's attention with the position biases (ALiBi) of all heads. Import of
this module registers the styles.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)
from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES
from transformers.distributed.tensor_parallel import (
    ColwiseParallel,
    EmbeddingParallel,
    PackedColwiseParallel,
    PackedRowwiseParallel,
    RowwiseParallel,
    TensorParallelLayer,
)

MATRICES = 3
"""Query, key and value side by side."""


class Conv1dColwise(ColwiseParallel):  # type: ignore[misc]
    """Cut the outputs: the last dimension of the weight and the bias."""

    def shard_param(self, module: nn.Module, param: str, mesh: DeviceMesh) -> None:
        """Replace a parameter by this rank's part of it."""
        _cut(module, param, mesh, Shard(module.get_parameter(param).ndim - 1))

    def install_forward(self, module: Any, mesh: DeviceMesh) -> nn.Module:
        """Change the forward of a layer."""
        module.out_features = module.nf
        made: nn.Module = super().install_forward(module, mesh)
        return made


class Conv1dRowwise(RowwiseParallel):  # type: ignore[misc]
    """Cut the inputs: the first dimension of the weight. The bias is added once."""

    def shard_param(self, module: nn.Module, param: str, mesh: DeviceMesh) -> None:
        """Replace a parameter by this rank's part of it."""
        _cut(module, param, mesh, Replicate() if param == "bias" else Shard(0))

    def install_forward(self, module: Any, mesh: DeviceMesh) -> nn.Module:
        """Change the forward of a layer."""
        module.in_features = module.nx
        made: nn.Module = super().install_forward(module, mesh)
        return made


class PackedConv1d(PackedRowwiseParallel):  # type: ignore[misc]
    """Cut the outputs of each matrix that a weight has side by side.

    The bias is whole on every rank, which uses its parts of it.
    """

    def install_forward(self, module: Any, mesh: DeviceMesh) -> nn.Module:
        """Change the forward of a layer. It returns this rank's outputs."""

        def forward(x: torch.Tensor) -> torch.Tensor:
            whole = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
            given = whole.to_local(grad_placements=[Partial()])
            bias = module.bias.view(MATRICES, -1).redistribute(placements=[Shard(1)])
            out = torch.addmm(
                bias.to_local().flatten(),
                given.flatten(0, -2),
                module.weight.to_local(),
            )
            return out.unflatten(0, given.shape[:-1])

        module.forward = forward
        made: nn.Module = module
        return made


class LocalTable(EmbeddingParallel):  # type: ignore[misc]
    """Cut a table whose forward computes its rows, and join what the ranks look up."""

    def should_use_local_tensors(self, module: nn.Module) -> bool:
        """Return that the forward gets plain tensors."""
        return True


class OwnHeadsBias(TensorParallelLayer):  # type: ignore[misc]
    """Give the attention of a rank the position biases of its heads."""

    def transform_inputs_pre_forward(
        self, module: Any, args: Any, kwargs: Any, mesh: DeviceMesh
    ) -> tuple[Any, Any]:
        """Return the arguments with a part of ``alibi``, [sequences x heads, 1, S]."""
        whole = kwargs["alibi"]
        by_head = whole.unflatten(0, (-1, mesh.size(), module.num_heads))
        own = by_head[:, mesh.get_local_rank()].flatten(0, 1)
        return args, {**kwargs, "alibi": own}


def _cut(module: nn.Module, name: str, mesh: DeviceMesh, place: Any) -> None:
    """Replace a parameter by this rank's part. Nothing is sent."""
    param = module.get_parameter(name)
    part = distribute_tensor(param, mesh, [place], src_data_rank=None)
    made = nn.Parameter(part, requires_grad=param.requires_grad)
    module.register_parameter(name, made)


ALL_PARALLEL_STYLES.register("conv1d_colwise", Conv1dColwise())
ALL_PARALLEL_STYLES.register("conv1d_rowwise", Conv1dRowwise())
ALL_PARALLEL_STYLES.register("own_heads_bias", OwnHeadsBias())
ALL_PARALLEL_STYLES.register("local_table", LocalTable(shard_dim=1))
ALL_PARALLEL_STYLES.register("conv1d_packed", PackedConv1d(split_factor=MATRICES))
ALL_PARALLEL_STYLES.register(
    "packed_colwise_3", PackedColwiseParallel(split_factor=MATRICES)
)

"""Which part of a model's work one rank has: the strategy and its degrees."""

from dataclasses import dataclass
from typing import Literal

Strategy = Literal[
    "single", "ddp", "zero1", "zero2", "fsdp", "pipeline", "gpipe", "tensor"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Which part of the work one rank has."""

    strategy: Strategy = "single"
    data_degree: int = 1
    """Replicas that share the batch."""
    tensor_degree: int = 1
    first_layer: int = 0
    last_layer: int | None = None
    """One past the last layer of this rank's stage; None: to the end."""
    in_flight: int = 1
    """Microbatches whose activations this stage keeps at once (1F1B: p - i)."""
    microbatches: int = 1
    """Pipeline: pieces that one replica's batch is cut into."""
    share_ratio: float | None = None
    """Uneven ZeRO-1: this rank's part of the optimizer state; None: 1 / data_degree."""
    offload_optimizer: bool = False
    """Optimizer state and its step live in the node's memory."""
    bucket_elements: int | None = None
    """ZeRO-2: elements of the reduce bucket; None: as large as the largest layer."""
    bucket_view: bool = True
    """DDP: gradients are views of the buckets; False: buckets exist besides them."""


SINGLE = Sharding()

"""Read Plans of version 1, which the database may have, as Plans of this version.

They had no stages, replicas or tensor ranks by number, no degrees and one Node. All of
that follows from the strategy, which then used one way of cutting at a time.
"""

from collections.abc import Mapping
from typing import Any

from placement.planner.values.strategies import Axis, strategy_of


def upgraded(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same Plan with the fields of version 2.

    Raises KeyError or TypeError for data that never was a Plan.
    """
    strategy = data["strategy"]
    known_strategy = strategy_of(strategy)
    axis = known_strategy.axis
    if axis not in (Axis.STAGE, Axis.TENSOR):
        axis = Axis.REPLICA
    shards = [
        {"node": data["node"], axis.value: rank, **shard}
        for rank, shard in enumerate(data["shards"])
    ]
    launch = dict(data["launch"])
    uuids = [shard["gpu_uuid"] for shard in shards]
    count = len(uuids)
    degrees = {
        "tensor_degree": count if axis is Axis.TENSOR else 1,
        "pipeline_degree": count if axis is Axis.STAGE else 1,
        "data_degree": count if axis is Axis.REPLICA else 1,
    }
    grid = [uuids] if axis is Axis.TENSOR else [[uuid] for uuid in uuids]
    offload = "cpu" if launch.get("offload_optimizer") else "none"
    known = {
        **degrees,
        "zero_stage": known_strategy.zero_stage or 0,
        "nodes": [data["node"]],
        "rank_grid": grid,
        "weights": "full",
        "offload": offload,
        "offload_parameters": False,
        "sequence_parallel": False,
        "schedule": launch.get("schedule", ""),
        "virtual_stages": 1,
        "microbatches": 1,
    }
    return {
        **data,
        "shards": shards,
        "launch": {**known, **launch, **degrees},
        "nodes": [data["node"]],
    }

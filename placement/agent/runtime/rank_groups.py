"""The position of this process among the ranks: its coordinates and groups."""

import atexit
import gc
import os

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh

from placement.planner.launch.execution import Execution
from placement.planner.values.errors import PlanInvalid

AXES = ("stage", "replica", "tensor")


def begin() -> torch.device:
    """Join the processes that torchrun started. Return this process's device."""
    # The objects of torch stay. Collections in the training skip them, and so does the
    # one at the end of the process, which takes half a second of CPU.
    gc.freeze()
    atexit.register(gc.freeze)
    cuda = torch.cuda.is_available()
    if not cuda:
        torch.set_num_threads(1)
        distributed.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    distributed.init_process_group("nccl", device_id=device)
    return device


class RankGroups:
    """This process's place in the grid of stages x replicas x tensor ranks.

    `sharing` are the ranks among which FSDP shares the weights: all replicas of this
    rank's part, or with HSDP a grid of copies x shards.
    """

    def __init__(self, how: Execution, device: torch.device) -> None:
        """Create the groups. Raises PlanInvalid if other ranks than its own were
        started.
        """
        self.device = device
        self.rank = distributed.get_rank()
        if distributed.get_world_size() != how.ranks:
            raise PlanInvalid(
                [
                    f"the plan has {how.ranks} ranks and {distributed.get_world_size()}"
                    " processes were started"
                ]
            )
        self.place = how.places[self.rank]
        grid = torch.empty(how.stages, how.replicas, how.tensor_degree, dtype=torch.int)
        for rank, place in enumerate(how.places):
            grid[place.stage, place.replica, place.tensor_rank] = rank
        self.mesh = DeviceMesh(device.type, grid, mesh_dim_names=AXES)
        self.sharing = self.along("replica")
        if 0 < how.shard_degree < how.replicas:
            # FSDP copies along the first dimension and shards along the second.
            self.sharing = DeviceMesh(
                device.type,
                grid.view(-1, how.shard_degree),
                mesh_dim_names=("copy", "shard"),
            )

    def along(self, axis: str) -> DeviceMesh:
        """Return the ranks that differ from this one in one coordinate only."""
        return self.mesh[axis]

    def group(self, axis: str) -> distributed.ProcessGroup:
        """Return them as a process group."""
        return self.mesh.get_group(axis)

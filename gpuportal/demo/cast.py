"""The demo lab's activity at the moment it is made. Data only.

Each line shows one state of the board: busy, idle though booked, an intruder, a
squatter, booked and waiting, lost, under maintenance, free.
"""

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Scene:
    """One running reservation, and the process on its Gpus."""

    user: str
    node: str
    indexes: tuple[int, ...]
    begun_hours: float
    left_hours: float
    purpose: str
    actor: str = ""  # who is seen on it; "" nobody
    command: str = ""
    memory_bytes: int = 0
    util_pct: float = 0
    recipe: str = ""  # a real job of the portal, run by the node worker
    came: bool = True  # the holder was there (or clicked) before now


SCENES = (
    Scene(
        "alice",
        "node-a",
        (0,),
        0.1,
        4,
        "language model, first run",
        recipe="tiny-transformer",
        came=False,
    ),
    Scene(
        "bob",
        "node-a",
        (1,),
        3,
        2,
        "detector, 80 GB batch",
        actor="bob",
        command="python train.py --config configs/detr.yaml",
        memory_bytes=61 * GIB,
        util_pct=93,
    ),
    Scene(
        "dmitri",
        "node-a",
        (2,),
        2,
        5,
        "notebook",
        actor="dmitri",
        command="jupyter-lab --no-browser",
        memory_bytes=38 * GIB,
        util_pct=0,
    ),
    Scene(
        "carol",
        "node-a",
        (3,),
        0.5,
        3.5,
        "evaluation",
        actor="eve",
        command="python rollout.py --envs 512",
        memory_bytes=22 * GIB,
        util_pct=41,
    ),
    Scene(
        "luca",
        "node-b",
        (0, 1),
        4,
        6,
        "policy, two Gpus",
        actor="luca",
        command="python -m torch.distributed.run --nproc-per-node 2 ppo.py",
        memory_bytes=19 * GIB,
        util_pct=97,
    ),
    Scene(
        "nora", "node-b", (2,), 0.05, 4, "folding, when the data is here", came=False
    ),
    Scene(
        "mei",
        "node-b",
        (6,),
        0.1,
        3,
        "burn-in of the new card",
        recipe="burn-in",
        came=False,
    ),
)


# Paced to be watched for hours without burning a laptop's CPU.
RECIPE_SETTINGS: dict[str, dict[str, object]] = {
    "tiny-transformer": {
        "steps": 14_000,
        "seconds_per_step": 1,
        "simulated_memory_gib": 52,
        "simulated_util_pct": 88,
    },
    "burn-in": {
        "seconds": 10_000,
        "lines_per_second": 1,
        "simulated_memory_gib": 9,
        "simulated_util_pct": 64,
    },
}


@dataclass(frozen=True)
class Squatter:
    """A process on a Gpu that nobody booked."""

    user: str
    node: str
    index: int
    command: str
    memory_bytes: int
    util_pct: float


SQUATTER = Squatter("tom", "node-b", 3, "python slam_eval.py --loop", 7 * GIB, 28)

"""The people and nodes of the demo lab. Data only.

Two nodes of two classes, four groups, sixteen students, one operator. The first names
are those of the tests: Alice and Bob share an account, Carol is outside, Omar runs the
site.
"""

from dataclasses import dataclass

GIB = 2**30
ROOT = "institute"
OPERATOR = ("omar", "Omar Haddad")


@dataclass(frozen=True)
class DemoGroup:
    """An account with its students; the first one is its head."""

    name: str
    title: str
    shares: int
    hue: int
    students: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class SimulatedNode:
    """A node of equal simulated Gpus."""

    name: str
    count: int
    gpu_name: str
    gpu_class: str
    memory_bytes: int
    power_limit_watts: float
    slowdown_celsius: float
    sm_clock_max_mhz: int
    linked: bool


LOGINS = ("omar", "alice", "bob", "carol")
"""Only these can sign in at first. The operator can give the others a password."""

GROUPS = (
    DemoGroup(
        "vision",
        "Vision",
        4,
        205,
        (
            ("alice", "Alice Moreau"),
            ("bob", "Bob Lindqvist"),
            ("wei", "Wei Zhang"),
            ("ines", "Ines Costa"),
        ),
    ),
    DemoGroup(
        "nlp",
        "Language",
        4,
        28,
        (
            ("carol", "Carol Nowak"),
            ("dmitri", "Dmitri Orlov"),
            ("aisha", "Aisha Bello"),
            ("jonas", "Jonas Weber"),
            ("mei", "Mei Tanaka"),
        ),
    ),
    DemoGroup(
        "robotics",
        "Robotics",
        2,
        145,
        (
            ("eve", "Eve Martin"),
            ("luca", "Luca Rossi"),
            ("priya", "Priya Nair"),
            ("tom", "Tom Becker"),
        ),
    ),
    DemoGroup(
        "bio",
        "Biology",
        2,
        320,
        (
            ("nora", "Nora Svensson"),
            ("ahmed", "Ahmed Farouk"),
            ("sofia", "Sofia Petrova"),
        ),
    ),
)

NODES = (
    SimulatedNode(
        name="node-a",
        count=4,
        gpu_name="NVIDIA A100-SXM4-80GB",
        gpu_class="A100 80 GB",
        memory_bytes=80 * GIB,
        power_limit_watts=400,
        slowdown_celsius=89,
        sm_clock_max_mhz=1410,
        linked=True,
    ),
    SimulatedNode(
        name="node-b",
        count=8,
        gpu_name="NVIDIA GeForce RTX 3090",
        gpu_class="RTX 3090 24 GB",
        memory_bytes=24 * GIB,
        power_limit_watts=350,
        slowdown_celsius=95,
        sm_clock_max_mhz=2100,
        linked=False,
    ),
)
# On node-b: a lost Gpu and one under maintenance, so that the board shows both.
LOST = ("node-b", 4)
MAINTENANCE = ("node-b", 5)

PURPOSES = (
    "ablation, seed 3",
    "fine-tune on the new split",
    "baseline for the paper",
    "data loader test",
    "sweep over learning rates",
    "course project",
    "evaluation",
    "pre-training, stage 2",
)
COMMANDS = (
    "python train.py --config configs/base.yaml",
    "python -m torch.distributed.run --nproc-per-node 2 pretrain.py",
    "python finetune.py --lora-rank 16 --epochs 3",
    "python eval.py --split val --batch 64",
    "python sample.py --steps 50",
)

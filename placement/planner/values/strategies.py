"""The registry of parallel strategies, with all facts about each in one place.

Every table of strategies is derived from `STRATEGIES`. To add a strategy:

1. Add its `Strategy` here, and list it in `STRATEGIES`. 2. Write the choice of GPUs for
it in `search/candidates`. 3. Name that search in `SEARCHES` of `search/planner.py`. 4.
If its ranks hold bytes that no other strategy has, count them in
`memory/rank_states.py`.

Keys are stored in Plans and outcomes and are part of the API: never rename one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Literal

from telemetry.protocol.sentences import sentence

Engine = Literal["auto", "torch", "deepspeed", "megatron"]
Schedule = Literal["1f1b", "gpipe", "interleaved"]
Launcher = Literal["accelerate", "deepspeed", "device_map", "server"]
"""A tool with its own configuration. torchrun starts every Plan. server: vLLM and
SGLang.
"""
Backend = Literal["torch", "deepspeed"]
"""A library that the recipes can train with."""


class Axis(Enum):
    """The dimension in which the ranks of a strategy differ: the field of a Shard that
    counts them.
    """

    NONE = ""
    """There is one rank."""
    REPLICA = "replica"
    """Each rank runs the whole model on a part of the batch."""
    TENSOR = "tensor_rank"
    """Each rank runs a part of every layer."""
    STAGE = "stage"
    """Each rank runs some of the layers."""
    SEVERAL = "several"
    """Two or three of these together."""


_TORCH: frozenset[Backend] = frozenset({"torch"})
_BOTH: frozenset[Backend] = frozenset({"torch", "deepspeed"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Strategy:
    """One way to run a model on one or several GPUs."""

    key: str
    """Used in JSON, in the database and on the command line."""
    axis: Axis
    title: str = ""
    """Its name on screen; "": it is only estimated, and no Plan has it."""
    why: str = ""
    """Copies of the model: the sentence that explains it in a Plan."""
    zero_stage: int | None = 0
    """ZeRO stage of the replicas, 0 to 3 (arXiv:1910.02054); None: the Plan has it."""
    engine: Backend = "torch"
    """The library whose communication buffers are counted, and for which a Plan is
    made.
    """
    rank_rules: str = ""
    """The strategy by whose rules the memory of its ranks is counted; "": its own
    rules.
    """
    schedule: Schedule | None = None
    """Schedule of its stages; None: it has none, or the Plan has it."""
    uneven_shares: bool = False
    """The replicas own parts of the optimizer state of different sizes."""
    slow_link_place: int = 0
    """Between Plans that are otherwise equal, the lowest comes first."""
    fast_link_place: int = 0
    """The order if all GPUs of the Plan are joined by fast links."""
    on_request: bool = False
    """It is searched only if the request names it."""
    across_nodes: bool = False
    """It is also searched over GPUs of several nodes."""
    only_across_nodes: bool = False
    """It is searched only over GPUs of several nodes (`candidates/cluster_grid.py`)."""
    launchers: frozenset[Launcher] = frozenset()
    """The launchers that can express it."""
    backends: frozenset[Backend] = _TORCH
    """The libraries with which the recipes run it."""

    @property
    def is_planned(self) -> bool:
        """Return whether a Plan can have it."""
        return bool(self.title)

    @property
    def has_stages(self) -> bool:
        """Return whether its ranks may have different layers."""
        return self.axis in (Axis.STAGE, Axis.SEVERAL)

    @property
    def keeps_model_whole(self) -> bool:
        """Return whether the strategy runs a model without cutting its layers."""
        return self.axis in (Axis.NONE, Axis.REPLICA)

    @property
    def keeps_state_whole(self) -> bool:
        """Return whether each rank has all weights, gradients and optimizer state."""
        return self.keeps_model_whole and self.zero_stage == 0

    @property
    def uses_ddp(self) -> bool:
        """Return whether torch's DDP averages the gradients, which then stay between
        steps.
        """
        return self.axis is Axis.REPLICA and self.zero_stage in (0, 1)

    @property
    def shares_gradients(self) -> bool:
        """Return whether each rank keeps a part of the gradients: ZeRO-2 and ZeRO-3."""
        return (self.zero_stage or 0) >= 2

    def place(self, *, fast_links: bool) -> int:
        """Return its place in the order of choice."""
        return self.fast_link_place if fast_links else self.slow_link_place


SINGLE = Strategy(
    key="single",
    axis=Axis.NONE,
    title=sentence("One GPU"),
    slow_link_place=10,
    fast_link_place=10,
    launchers=frozenset({"accelerate", "deepspeed", "device_map", "server"}),
)
DDP = Strategy(
    key="ddp",
    axis=Axis.REPLICA,
    title=sentence("Data parallel (DDP)"),
    why=sentence(
        "Each GPU holds the whole model and takes a part of the batch; only "
        "gradients are averaged between them."
    ),
    slow_link_place=20,
    fast_link_place=20,
    across_nodes=True,
    launchers=frozenset({"accelerate", "deepspeed", "server"}),
)
ZERO1 = Strategy(
    key="zero1",
    axis=Axis.REPLICA,
    title=sentence("Data parallel, optimizer split (ZeRO-1)"),
    why=sentence(
        "Each GPU holds weights and gradients, and 1/N of the optimizer state."
    ),
    zero_stage=1,
    slow_link_place=30,
    fast_link_place=30,
    across_nodes=True,
    launchers=frozenset({"accelerate", "deepspeed"}),
    backends=_BOTH,
)
ZERO1_UNEVEN = Strategy(
    key="zero1_uneven",
    axis=Axis.REPLICA,
    title=sentence("Data parallel, optimizer split by free memory (uneven ZeRO-1)"),
    zero_stage=1,
    rank_rules="zero1",
    uneven_shares=True,
    slow_link_place=40,
    fast_link_place=40,
)
ZERO2 = Strategy(
    key="zero2",
    axis=Axis.REPLICA,
    title=sentence("Data parallel, optimizer and gradients split (ZeRO-2)"),
    why=sentence(
        "Each GPU holds the weights, and 1/N of gradients and optimizer state."
    ),
    zero_stage=2,
    engine="deepspeed",
    slow_link_place=80,
    fast_link_place=50,
    launchers=frozenset({"accelerate", "deepspeed"}),
    backends=_BOTH,
)
ZERO3 = Strategy(
    key="zero3",
    axis=Axis.REPLICA,
    zero_stage=3,
    engine="deepspeed",
    backends=frozenset(),
)
"""DeepSpeed's ZeRO-3. Plans have torch's FSDP instead, which shares the same states."""
FSDP = Strategy(
    key="fsdp",
    axis=Axis.REPLICA,
    title=sentence("Fully sharded (ZeRO-3 / FSDP)"),
    why=sentence(
        "Each GPU keeps 1/N of everything and fetches a layer's weights when it "
        "runs, so even a model larger than a GPU fits."
    ),
    zero_stage=3,
    slow_link_place=90,
    fast_link_place=60,
    launchers=frozenset({"accelerate", "deepspeed"}),
    backends=_BOTH,
)
HSDP = Strategy(
    key="hsdp",
    axis=Axis.REPLICA,
    title=sentence("Sharded inside a node, copied across nodes (HSDP)"),
    why=sentence(
        "The GPUs of a node share out everything and fetch a layer's weights over the "
        "node's own links; between nodes only gradients are averaged."
    ),
    zero_stage=3,
    slow_link_place=95,
    fast_link_place=65,
    across_nodes=True,
    only_across_nodes=True,
)
PIPELINE = Strategy(
    key="pipeline",
    axis=Axis.STAGE,
    title=sentence("Layers in stages (pipeline, 1F1B)"),
    schedule="1f1b",
    slow_link_place=50,
    fast_link_place=80,
    across_nodes=True,
    launchers=frozenset({"deepspeed", "device_map", "server"}),
    backends=_BOTH,
)
GPIPE = Strategy(
    key="gpipe",
    axis=Axis.STAGE,
    title=sentence("Layers in stages (pipeline, GPipe)"),
    schedule="gpipe",
    slow_link_place=70,
    fast_link_place=100,
    on_request=True,
    across_nodes=True,
    launchers=frozenset({"deepspeed", "device_map"}),
)
"""Only on request, because 1F1B is never worse."""
INTERLEAVED = Strategy(
    key="interleaved",
    axis=Axis.STAGE,
    title=sentence("Layers in stages (pipeline, interleaved 1F1B)"),
    rank_rules="pipeline",
    schedule="interleaved",
    slow_link_place=60,
    fast_link_place=90,
)
TENSOR = Strategy(
    key="tensor",
    axis=Axis.TENSOR,
    title=sentence("Every layer split across GPUs (tensor parallel)"),
    slow_link_place=100,
    fast_link_place=70,
    launchers=frozenset({"server"}),
)
HYBRID = Strategy(
    key="hybrid",
    axis=Axis.SEVERAL,
    title=sentence("Tensor, pipeline and data parallel (hybrid)"),
    zero_stage=None,
    slow_link_place=110,
    fast_link_place=110,
    across_nodes=True,
    launchers=frozenset({"server"}),
)
CONTEXT = Strategy(
    key="context_parallel",
    axis=Axis.SEVERAL,
    title=sentence("Long sequences cut over GPUs, with other degrees (hybrid)"),
    zero_stage=None,
    rank_rules="hybrid",
    slow_link_place=120,
    fast_link_place=120,
    across_nodes=True,
    only_across_nodes=True,
    backends=frozenset(),
)
"""Context parallelism: each rank has a part of every sequence (arXiv:2310.01889)."""
EXPERT = Strategy(
    key="expert_parallel",
    axis=Axis.SEVERAL,
    title=sentence("Experts spread over GPUs, with other degrees (hybrid)"),
    zero_stage=None,
    rank_rules="hybrid",
    slow_link_place=115,
    fast_link_place=115,
    across_nodes=True,
    only_across_nodes=True,
    backends=frozenset(),
)
"""Expert parallelism: each rank has some of a mixture's experts (arXiv:2006.16668)."""

STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        one.key: one
        for one in (
            *(SINGLE, DDP, ZERO1, ZERO1_UNEVEN, ZERO2, ZERO3, FSDP, HSDP),
            *(PIPELINE, GPIPE, INTERLEAVED, TENSOR, HYBRID, CONTEXT, EXPERT),
        )
    }
)
"""Key -> Strategy, in the order of lists on screen and in messages."""
TITLES = {one.key: one.title for one in STRATEGIES.values() if one.is_planned}
"""Strategies of Plans: key -> name on screen."""
RANK_STRATEGIES = tuple(one.key for one in STRATEGIES.values() if not one.rank_rules)
"""Strategies with their own memory rules: those that a Sharding can have."""


def search_order(*, across_nodes: bool = False) -> tuple[str, ...]:
    """Return the strategies to search. Those that are searched on request come last.

    Args:
        across_nodes: only those that are searched over several nodes.
    """
    wanted = [
        one
        for one in STRATEGIES.values()
        if one.is_planned
        and (one.across_nodes or not across_nodes)
        and not one.only_across_nodes
    ]
    wanted.sort(key=lambda one: (one.on_request, one.slow_link_place))
    return tuple(one.key for one in wanted)


def strategy_of(key: str) -> Strategy:
    """Return the strategy of a stored Plan. This release may not know it.

    An unknown one counts as copies of the model, and no recipe runs it.
    """
    known = STRATEGIES.get(key)
    return known or Strategy(key=key, axis=Axis.REPLICA, backends=frozenset())

"""The planner's answer: a Plan is data that can be printed and converted to JSON and
back.

A Plan has the work of each Gpu, the content of each Gpu's memory, the time of a step,
the reason for its form, and the launch. A RejectedStrategy has the Gpu that lacks
memory, its missing bytes, and the cheapest change that would fit. `plan_validation.py`
checks Plans and shares no code with the planner.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from placement.planner.values.errors import PlanInvalid
from placement.planner.values.humanize import gib, seconds
from placement.planner.values.json_value import JsonValue
from placement.planner.values.plan_v1 import upgraded
from placement.planner.values.strategies import HYBRID, TITLES
from placement.planner.values.workload import Workload
from telemetry.protocol.codec import read

VERSION = 2
MOST_ROWS = 32
"""Most ranks of one Plan in its table."""
MOST_NAMED = 4
"""Most nodes of one Plan by name in its table."""
READABLE = (1, 2)
"""Version 1 had no stages, replicas, objectives or several Nodes. It can still be
read.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One rank's part: one process on one Gpu."""

    rank: int
    gpu_uuid: str
    gpu_label: str
    """node:index, for people."""
    gpu_name: str
    first_layer: int
    last_layer: int
    """One past the last layer."""
    share_ratio: float | None
    """Part of the optimizer state that this rank owns (ZeRO-1); None otherwise."""
    components: dict[str, int]
    """Bytes at the peak by component, context included. They add up to low_bytes."""
    low_bytes: int
    likely_bytes: int
    high_bytes: int
    total_bytes: int
    used_bytes: int
    """Bytes used by others when the Plan was made."""
    free_bytes: int
    node: str = ""
    """Empty in Plans of version 1: the Plan's node."""
    stage: int = 0
    """Number of its stage of the pipeline; 0 if there is only one."""
    replica: int = 0
    """Number of its copy of the model."""
    tensor_rank: int = 0
    """Number of its part of every layer."""
    chunks: tuple[tuple[int, int], ...] = ()
    """interleaved: its pieces of the model; empty: a single one, first to last."""
    busy_seconds: float = 0.0
    """Seconds of one step in which it computes."""
    prior_likely_bytes: int = 0
    """`likely` without the correction by the site's measured error; 0: not
    corrected.
    """
    prior_high_bytes: int = 0
    """`high` without that correction."""

    @property
    def pieces(self) -> tuple[tuple[int, int], ...]:
        """Return (first, one past the last) layer of every piece of the model on it."""
        return self.chunks or ((self.first_layer, self.last_layer),)

    @property
    def headroom_bytes(self) -> int:
        """Return the free bytes beyond the likely need; negative in a tight Plan."""
        return self.free_bytes - self.likely_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(JsonValue):
    """One way to run a model on chosen Gpus of one Node."""

    strategy: str
    title: str
    model: str
    parameter_count: int
    layer_count: int
    node: str
    workload: Workload
    """The workload with remedies applied."""
    remedies: tuple[str, ...]
    """The changes of the workload that make it fit, and the effect of each."""
    shards: tuple[Shard, ...]
    fit: str
    """comfortable: the likely need fits; tight: only the least possible need fits."""
    step_seconds: float
    compute_seconds: float
    communication_seconds: float
    bubble_seconds: float
    units_per_second: float
    """Tokens (or images) per second."""
    why: tuple[str, ...]
    notes: tuple[str, ...]
    activations_are_a_guess: bool
    launch: dict[str, Any] = field(default_factory=dict)
    """nproc, strategy, pipeline bounds, microbatches, zero stage: see planner.py."""
    nodes: tuple[str, ...] = ()
    """All Nodes it uses, `node` first."""
    bound_by: str = ""
    """The part that leaves the least room: "activations of stage 2 (lab-a:1)"."""
    quota_gpu_seconds: float = 0.0
    """Quota cost of one step, in weighted GPU-seconds."""
    disturbance: float = 0.0
    """Computing processes of others on its Gpus, and their utilization (0 to 1)."""
    host_memory_bytes: int = 0
    """Bytes that its fullest node keeps in its own memory (offload)."""
    host_disk_bytes: int = 0
    """Bytes that its fullest node keeps on its drive."""
    troubled: int = 0
    """Number of its Gpus with a problem. The notes name the problems."""
    wait_seconds: float = 0.0
    """Seconds after the requested start until its Gpus are free together."""
    decode_seconds: float = 0.0
    """Inference of a generating model: seconds for one more token of every sequence."""
    decode_tokens_per_second: float = 0.0
    """Tokens per second of all sequences together."""
    fused_saves_seconds: float = 0.0
    """Seconds of a step that a fused optimizer would save. The default ranking takes
    them off.
    """
    prior_step_seconds: float = 0.0
    """Step time without the correction by the site's measured error; 0: not
    corrected.
    """
    absurd: str = ""
    """Why its step is not worth waiting for; "": its step is sensible."""
    trade: str = ""
    """Its time and its cost beside those of the Plan ranked first; "": the only
    Plan.
    """

    @property
    def gpu_seconds(self) -> float:
        """Return the GPU-seconds of one step. All its Gpus are held until it ends."""
        return len(self.shards) * self.step_seconds

    @property
    def spans_nodes(self) -> bool:
        """Return whether its Gpus are on more than one Node."""
        return len(self.nodes) > 1

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        """Return the Gpus in rank order."""
        return tuple(shard.gpu_uuid for shard in self.shards)

    @property
    def by_process(self) -> tuple[Shard, ...]:
        """Return the Shards in the order of processes: by Node, then by rank on the
        Node.

        A launcher numbers the processes of a Node consecutively, even if the Plan
        interleaves the ranks of several Nodes.
        """
        places = {name: number for number, name in enumerate(self.nodes)}
        return tuple(
            sorted(self.shards, key=lambda one: (places.get(one.node, 0), one.rank))
        )

    @property
    def bounds(self) -> tuple[int, ...]:
        """Return the first layer of each piece of the model, and the end."""
        starts = sorted({first for s in self.shards for first, _ in s.pieces})
        return (*starts, self.layer_count)

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict that `from_json` reads back to an equal Plan."""
        data = JsonValue.to_json(self) | {"version": VERSION}
        for shard, told in zip(self.shards, data["shards"], strict=True):
            told["headroom_bytes"] = shard.headroom_bytes
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read the result of `to_json`, of this version or of version 1.

        Raises PlanInvalid for anything else.
        """
        try:
            if data["version"] not in READABLE:
                raise PlanInvalid([f"only versions 1 to {VERSION} of a Plan are read"])
            told = data if data["version"] > 1 else upgraded(data)
            workload = Workload.from_json(told["workload"])
            plan = read(cls, {**told, "workload": workload.to_json()})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PlanInvalid([f"not a Plan: {error}"[:200]]) from error
        known = TITLES.get(plan.strategy)
        return replace(plan, title=known) if known == plan.title else plan

    def table(self) -> str:
        """Return the Plan as text, one line per rank."""
        gpus = f"{len(self.shards)} GPU{'s' if len(self.shards) > 1 else ''}"
        head = (
            f"{self.title}: {self.model}, {gpus} of "
            f"{self._nodes_told()}, {self.step_seconds:.3g} s a "
            f"step ({'not sensible' if self.absurd else self.fit})"
        )
        head = f"{head}\n{self.trade}" if self.trade else head
        parts = (
            f"compute {seconds(self.compute_seconds)}, bubble "
            f"{seconds(self.bubble_seconds)}, communication "
            f"{seconds(self.communication_seconds)}; {self.units_per_second:,.0f} a "
            "second"
        )
        keys = list(dict.fromkeys(key for s in self.shards for key in s.components))
        titles = [f"{key.replace('_', ' ')[:12]:>13}" for key in keys]
        lines = [
            head,
            parts,
            f"{'rank':>4}  {'gpu':<16}{'part':<18}{'need':>10}{'free':>10}{'left':>10}"
            + "".join(titles),
        ]
        for shard in self.shards[:MOST_ROWS]:
            sizes = [f"{gib(shard.components.get(key, 0)):>13}" for key in keys]
            lines.append(
                f"{shard.rank:>4}  {shard.gpu_label:<16}{self._part(shard):<18}"
                f"{gib(shard.likely_bytes):>10}{gib(shard.free_bytes):>10}"
                f"{gib(shard.headroom_bytes):>10}" + "".join(sizes)
            )
        more = len(self.shards) - MOST_ROWS
        if more > 0:
            lines.append(f"     and {more:,} more ranks")
        remedies = [f"- {sentence}" for sentence in self.remedies]
        said = (*filter(None, [self.absurd]), *self.why, *self.notes)
        notes = [f"- {sentence}" for sentence in said]
        return "\n".join([*lines, *remedies, *notes])

    def _nodes_told(self) -> str:
        """Return its nodes by name, or their number."""
        nodes = self.nodes or (self.node,)
        if len(nodes) <= MOST_NAMED:
            return ", ".join(nodes)
        return f"{nodes[0]} to {nodes[-1]} ({len(nodes)} nodes)"

    def _part(self, shard: Shard) -> str:
        """Return the part of the model on a rank, in few words."""
        layers = "+".join(f"{first}-{last - 1}" for first, last in shard.pieces)
        degrees = [
            f"{letter}{number}"
            for letter, number, key in (
                ("d", shard.replica, "data_degree"),
                ("t", shard.tensor_rank, "tensor_degree"),
            )
            if self.strategy == HYBRID.key and self.launch.get(key, 1) > 1
        ]
        if shard.share_ratio is not None:
            degrees.append(f"{shard.share_ratio:.0%}")
        return " ".join([layers, *degrees])


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedStrategy:
    """A rejected strategy, and the reason."""

    strategy: str
    title: str
    code: str
    """too-small, host-memory, not-applicable or not-better."""
    reason: str
    gpu_label: str = ""
    """The Gpu that is too small."""
    gpu_uuid: str = ""
    missing_bytes: int = 0
    """Missing bytes of that Gpu, with all allowed remedies applied."""
    cheapest_change: str = ""
    """The smallest change with which it would fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A Gpu that no Plan may use, and why."""

    gpu_label: str
    gpu_uuid: str
    reason: str
    code: str = ""
    """unsupported: its card cannot run the requested workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSet(JsonValue):
    """The result of the planner: Plans, best first, and rejected strategies."""

    model: str
    workload: Workload
    plans: tuple[Plan, ...]
    refusals: tuple[RejectedStrategy, ...]
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...] = ()
    wish: str = ""
    """The objective of the ranking, under its name in the API; empty: time x cost."""
    advice: str = ""
    """An alternative if no Plan is sensible. It is shown before all Plans."""

    batch_choices: tuple[int, ...] = ()
    """The nearest batches that more GPUs share evenly; (): they share the requested one
    evenly.
    """

    @property
    def best(self) -> Plan | None:
        """Return the Plan ranked first. If there is `advice`, that is shown before
        it.
        """
        return self.plans[0] if self.plans else None

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict for pages and the API."""
        plans = [plan.to_json() for plan in self.plans]
        return JsonValue.to_json(self) | {"plans": plans}

    def table(self) -> str:
        """Return every Plan as text, best first; rejected strategies with reasons;
        omissions.
        """
        said = [f"{self.advice}\n"] if self.advice else []
        said += [f"{n}. {one.table()}\n" for n, one in enumerate(self.plans, 1)]
        for lost in self.refusals:
            change = f" It would fit with {lost.cheapest_change}."
            ending = change if lost.missing_bytes and lost.cheapest_change else ""
            said.append(f"no  {lost.title}: {lost.reason}{ending}")
        said += [f"out {left.gpu_label}: {left.reason}" for left in self.left_out]
        return "\n".join([*said, *self.notes])

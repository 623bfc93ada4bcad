"""The planner's answer: a Plan is data. Printable, JSON and back, checked elsewhere.

A Plan says which Gpu runs what, what each Gpu's memory holds, how long a step takes,
why it looks like this, and how to launch it. A Refusal says which Gpu lacks how many
bytes and the cheapest change that would fit. `validate.py` checks Plans and shares no
code with the planner.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from placement.domain.errors import PlanInvalid
from placement.domain.words import gib
from placement.domain.workload import Workload

TITLES = {
    "single": "One GPU",
    "ddp": "Copies of the model (DDP)",
    "zero1": "Copies, optimizer state shared out (ZeRO-1)",
    "zero1_uneven": "Copies, optimizer state shared out by room (uneven ZeRO-1)",
    "zero2": "Copies, optimizer state and gradients shared out (ZeRO-2)",
    "fsdp": "Everything shared out (ZeRO-3 / FSDP)",
    "pipeline": "Layers in stages (pipeline, 1F1B)",
    "gpipe": "Layers in stages (pipeline, GPipe)",
    "tensor": "Every layer cut across GPUs (tensor parallel)",
}
"""What each strategy is called on screen."""


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
    """Part of the optimizer state that this rank owns (ZeRO-1); None elsewhere."""
    components: dict[str, int]
    """Bytes at the peak by component, context included; adds up to low_bytes."""
    low_bytes: int
    likely_bytes: int
    high_bytes: int
    total_bytes: int
    used_bytes: int
    """Used by others when the Plan was made."""
    free_bytes: int

    @property
    def headroom_bytes(self) -> int:
        """Free bytes that the likely need leaves; negative in a tight Plan."""
        return self.free_bytes - self.likely_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One way to run a model on chosen Gpus of one Node."""

    strategy: str
    title: str
    model: str
    parameter_count: int
    layer_count: int
    node: str
    workload: Workload
    """As it would be run, remedies applied."""
    remedies: tuple[str, ...]
    """What was changed in the workload to make it fit, and what each change buys."""
    shards: tuple[Shard, ...]
    fit: str
    """comfortable: the likely need fits; tight: only the least possible need does."""
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

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        """The Gpus in rank order."""
        return tuple(shard.gpu_uuid for shard in self.shards)

    @property
    def bounds(self) -> tuple[int, ...]:
        """First layer of each pipeline stage, and the end."""
        return (*(s.first_layer for s in self.shards), self.shards[-1].last_layer)

    def to_json(self) -> dict[str, Any]:
        """Plain dict that `from_json` reads back to an equal Plan."""
        data = asdict(self)
        data["version"] = 1
        data["workload"] = self.workload.to_json()
        for shard, plain in zip(self.shards, data["shards"], strict=True):
            plain["headroom_bytes"] = shard.headroom_bytes
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Plan":
        """Read back what `to_json` wrote. Raises PlanInvalid for anything else."""
        try:
            if data["version"] != 1:
                raise PlanInvalid(["only version 1 of a Plan can be read"])
            plain = {key: data[key] for key in cls.__slots__}
            plain["workload"] = Workload.from_json(plain["workload"])
            plain["shards"] = tuple(
                Shard(**{key: shard[key] for key in Shard.__slots__})
                for shard in plain["shards"]
            )
            for name in ("remedies", "why", "notes"):
                plain[name] = tuple(map(str, plain[name]))
            return cls(**plain)
        except (KeyError, TypeError) as error:
            raise PlanInvalid([f"not a Plan: {error!r}"[:200]]) from error

    def table(self) -> str:
        """The Plan as text, one line per rank."""
        lines = [
            f"{self.title}: {self.model}, {len(self.shards)} GPU"
            f"{'s' if len(self.shards) > 1 else ''} of {self.node}, "
            f"{self.step_seconds:.3g} s a step ({self.fit})",
            f"{'rank':>4}  {'gpu':<14}{'layers':<10}{'need':>11}{'free':>11}"
            f"{'left':>11}",
        ]
        for shard in self.shards:
            layers = f"{shard.first_layer}-{shard.last_layer - 1}"
            lines.append(
                f"{shard.rank:>4}  {shard.gpu_label:<14}{layers:<10}"
                f"{gib(shard.likely_bytes):>11}{gib(shard.free_bytes):>11}"
                f"{gib(shard.headroom_bytes):>11}"
            )
        return "\n".join([*lines, *(f"- {sentence}" for sentence in self.why)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A strategy that lost, and why."""

    strategy: str
    title: str
    code: str
    """too_small, not_applicable, not_better."""
    reason: str
    gpu_label: str = ""
    """The Gpu that is too small."""
    gpu_uuid: str = ""
    missing_bytes: int = 0
    """What that Gpu lacks, all allowed remedies applied."""
    cheapest_change: str = ""
    """The smallest change with which it would fit."""

    def to_json(self) -> dict[str, Any]:
        """Plain dict for pages and the API."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A Gpu that no Plan may use, and why."""

    gpu_label: str
    gpu_uuid: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSet:
    """All that the planner found: Plans, best first, and what lost."""

    model: str
    workload: Workload
    plans: tuple[Plan, ...]
    refusals: tuple[Refusal, ...]
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Plan | None:
        """The Plan ranked first."""
        return self.plans[0] if self.plans else None

    def to_json(self) -> dict[str, Any]:
        """Plain dict for pages and the API."""
        return {
            "model": self.model,
            "workload": self.workload.to_json(),
            "plans": [plan.to_json() for plan in self.plans],
            "refusals": [refusal.to_json() for refusal in self.refusals],
            "left_out": [asdict(left) for left in self.left_out],
            "notes": list(self.notes),
        }

"""A Job over several nodes: which Gpus on which, and what its parts make of the whole.

A part is what runs on one node. The Job runs when all have started and is done when
all are; where one fails or is lost the others are stopped, and the Job ends as that one
did, for a reason that names its node and rank.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placement.domain.lifecycle import JobState

_RANK = re.compile(r"gpuportal: (rank \d+ ended (?:by (SIG\w+)|with exit code \d+))")
ENDS = (JobState.LOST, JobState.FAILED, JobState.STOPPED, JobState.DONE)
"""The whole ends as the first of these that a part ended as."""
BAD = frozenset({JobState.LOST, JobState.FAILED})
CONSEQUENCE = "SIGABRT"
"""How torch ends a rank whose peers are gone: not what was first."""


def gpus_by_node(plan: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return the Gpus of a Plan (as JSON) by node, as its processes are counted.

    >>> gpus_by_node({"node": "a", "nodes": ["b", "a"], "shards": [
    ...     {"node": "a", "gpu_uuid": "0"}, {"node": "b", "gpu_uuid": "1"}]})
    [('b', ['1']), ('a', ['0'])]
    """
    own = str(plan.get("node", ""))
    found: dict[str, list[str]] = {str(name): [] for name in plan.get("nodes") or [own]}
    shards = plan.get("shards") or []
    for shard in sorted(shards, key=lambda one: int(one.get("rank", 0))):
        node = str(shard.get("node") or own)
        found.setdefault(node, []).append(str(shard["gpu_uuid"]))
    return [(node, uuids) for node, uuids in found.items() if uuids]


@dataclass(frozen=True, slots=True)
class PartInfo:
    """What is known of one part."""

    number: int
    node: str
    first_rank: int
    ranks: int
    state: JobState
    reason: str = ""
    last_lines: Sequence[str] = ()
    ended_at: float = 0.0

    @property
    def rank_words(self) -> str:
        """Which ranks run there, in words."""
        if self.ranks == 1:
            return f"rank {self.first_rank}"
        return f"ranks {self.first_rank} to {self.first_rank + self.ranks - 1}"

    @property
    def said(self) -> re.Match[str] | None:
        """What its launcher said of the rank that failed first there."""
        lines = (_RANK.fullmatch(line.strip()) for line in reversed(self.last_lines))
        return next((found for found in lines if found), None)


def ended_as(states: Collection[JobState]) -> JobState | None:
    """Return how the whole ended; None: a part has not.

    >>> ended_as([JobState.DONE, JobState.DONE]).value
    'done'
    >>> ended_as([JobState.STOPPED, JobState.FAILED]).value
    'failed'
    """
    if any(state not in ENDS for state in states):
        return None
    return next(state for state in ENDS if state in states)


def culprit(parts: Sequence[PartInfo]) -> PartInfo | None:
    """Return the part that the others went down with; None: none failed.

    One that was lost; else one whose rank was ended by a signal: that those of other
    nodes lost their connection is what follows. Else the first.
    """
    bad = [part for part in parts if part.state in BAD]

    def order(part: PartInfo) -> tuple[bool, bool, float, int]:
        signal = part.said.group(2) if part.said else None
        first = signal is not None and signal != CONSEQUENCE
        return part.state is not JobState.LOST, not first, part.ended_at, part.number

    return min(bad, key=order, default=None)


def reason_of(part: PartInfo) -> str:
    """Return why the whole ends, with node and rank."""
    said = part.said
    if said is not None:
        return f"{part.node}: {said.group(1)}"
    why = part.reason or "it failed there"
    if part.node in why:
        return f"{part.rank_words}: {why}"
    return f"{part.node} ({part.rank_words}): {why}"

"""A Job over several nodes: its Gpus on each, and its state from those of its parts.

A part runs on one node. The Job runs when all parts have started, and it is done when
all are done. If a part fails or is lost, the others are stopped. The Job then ends with
the state of that part and with a reason that names its node and rank.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placement.protocol.job_lifecycle import JobState
from telemetry.protocol.sentences import sentence

LOST_PEERS = "it lost the connection to ranks of other nodes"
"""A node's reason if its ranks ended because of other ranks. It is not the first
cause.
"""
_LOST = re.compile(
    r"gloo/transport/\S+\] .*(?:by peer|Broken pipe|Connection refused)"
    r"|ncclRemoteError|Did the remote server shutdown or crash"
)
_OURS = re.compile(r"gpuportal: rank (\d+) ended (?:by (SIG\w+)|with exit code (\d+))")
_TORCH_RANK = re.compile(r"rank +: (\d+) \(local_rank: \d+\)")
_TORCH_CODE = re.compile(r"exitcode +: (-?\d+) \(pid: \d+\)")
_DEEPSPEED = re.compile(r".*\[launch\.py:.* exits with return code = (-?\d+)")
ENDS = (JobState.LOST, JobState.FAILED, JobState.STOPPED, JobState.DONE)
"""The Job ends with the first of these states that a part has."""
BAD = frozenset({JobState.LOST, JobState.FAILED})
CONSEQUENCE = "SIGABRT"
"""The signal with which torch ends a rank whose peers are gone. It is not the first
cause.
"""


def gpus_by_node(plan: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return the Gpus of a Plan (as JSON) by node, in the order of its processes.

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


def ending(exit_code: int) -> str:
    """Return how a rank ended.

    >>> ending(-9), ending(3)
    ('ended by SIGKILL', 'ended with exit code 3')
    """
    if exit_code >= 0:
        return sentence("ended with exit code {code}", code=exit_code)
    try:
        return sentence("ended by {signal}", signal=signal.Signals(-exit_code).name)
    except ValueError:
        return sentence("ended by signal {signal}", signal=-exit_code)


def lost_peers(log: str) -> bool:
    """Return whether the end of a log reports that ranks on other nodes were gone.

    It recognises the messages of gloo, NCCL and torch's store. A lost connection to
    anything else does not count.
    """
    return _LOST.search(log) is not None


@dataclass(frozen=True, slots=True)
class PartInfo:
    """The known facts of one part."""

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
        """Return the ranks of the part in words."""
        if self.ranks == 1:
            return sentence("rank {rank}", rank=self.first_rank)
        return sentence(
            "ranks {first} to {last}",
            first=self.first_rank,
            last=self.first_rank + self.ranks - 1,
        )

    @property
    def launcher_report(self) -> str:
        """Return the launcher's report on the first rank that failed there, or "".

        The portal's launcher writes one line. torchrun and accelerate write a table
        whose last entry is the root cause
        ("torch.distributed.elastic.multiprocessing.errors"). DeepSpeed's ``launch.py``
        does not report which rank it was.
        """
        how = ""
        for line in reversed([line.strip() for line in self.last_lines]):
            if _OURS.fullmatch(line):
                return line.removeprefix("gpuportal: ")
            if found := _DEEPSPEED.fullmatch(line):
                one = "" if self.ranks == 1 else "one of "
                return f"{one}{self.rank_words} {ending(int(found[1]))}"
            if found := _TORCH_CODE.fullmatch(line):
                how = how or ending(int(found[1]))
            elif how and (found := _TORCH_RANK.fullmatch(line)):
                return f"rank {found[1]} {how}"
        return ""


def final_state(states: Collection[JobState]) -> JobState | None:
    """Return the state with which the Job ended; None if a part has not ended.

    >>> final_state([JobState.DONE, JobState.DONE]).value
    'done'
    >>> final_state([JobState.STOPPED, JobState.FAILED]).value
    'failed'
    """
    if any(state not in ENDS for state in states):
        return None
    return next(state for state in ENDS if state in states)


def first_failed_part(parts: Sequence[PartInfo]) -> PartInfo | None:
    """Return the part that caused the end of the others; None if none failed.

    A lost part comes first, then a part with a rank that was ended by a signal, then a
    part that did not end because of its connection to the others, which is a
    consequence. Otherwise it is the first one.
    """
    bad = [part for part in parts if part.state in BAD]

    def order(part: PartInfo) -> tuple[bool, bool, bool, float, int]:
        said = part.launcher_report
        first = " by SIG" in said and not said.endswith(CONSEQUENCE)
        follows = part.reason == LOST_PEERS
        lives = part.state is not JobState.LOST
        return lives, not first, follows, part.ended_at, part.number

    return min(bad, key=order, default=None)


def reason_of(part: PartInfo) -> str:
    """Return why the Job ends, with node and rank."""
    if said := part.launcher_report:
        return f"{part.node}: {said}"
    why = part.reason or sentence("it failed there")
    if part.node in why:
        return f"{part.rank_words}: {why}"
    return f"{part.node} ({part.rank_words}): {why}"

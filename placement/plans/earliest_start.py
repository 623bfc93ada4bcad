"""Find the first Window in which enough suitable Gpus are free together for a Plan.

A Gpu is suitable for a rank if, empty, it has the room that the rank needs and is at
least as fast as the Gpu it was planned for. Ranks that cut one layer together need Gpus
of one group of fast links; all ranks need one Node unless the Plan spans several.

Starts are tried in order: the requested start, then every instant at which a Gpu
becomes free, and full hours (reservations.rules.calendar). Ranks are assigned to Gpus
by bipartite matching by augmenting paths (H. W. Kuhn, Naval Research Logistics
Quarterly 2, 1955): O(ranks x ranks x Gpus), ranks being tens.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations
from typing import Any

from placement.planner.values.plan import Plan
from reservations.rules.calendar import (
    Calendar,
    CalendarGpu,
    SlotSearch,
    starts,
)
from reservations.rules.window import Window, window_from

SPEED_TOLERANCE = 0.99
MOST_STARTS = 500
MOST_NODE_SETS = 200
"""Sets of Nodes tried for one start of a Plan that spans several."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A Gpu of the calendar, with what placement knows of it."""

    gpu: CalendarGpu
    uuid: str
    peak_flops: float
    link_group: str = ""


@dataclass(frozen=True, slots=True)
class RankRequirement:
    """The requirements of one rank on a Gpu."""

    memory_bytes: int
    peak_flops: float
    team: int
    """Ranks of one team cut one layer: they need fast links."""
    uuid: str
    """The Gpu it was planned for: taken again where it is free."""


@dataclass(frozen=True, slots=True)
class EarliestStart:
    """The first Window, and the Gpu of each rank in it."""

    window: Window
    gpus: tuple[Candidate, ...]
    same: bool
    """True if these are the Plan's own Gpus."""

    def to_json(self) -> dict[str, Any]:
        """Return a dict for pages and the API."""
        return {
            "start": self.window.start.isoformat(),
            "end": self.window.end.isoformat(),
            "gpus": [one.gpu.label for one in self.gpus],
            "gpu_ids": [one.gpu.pk for one in self.gpus],
            "same": self.same,
        }


def needs_of(plan: Plan, peak_flops: Mapping[str, float]) -> list[RankRequirement]:
    """Return the requirements of a Plan's ranks. `peak_flops` of its Gpus by UUID."""
    cut = int(plan.launch.get("tensor_degree", 1)) > 1
    teams: dict[tuple[int, int], int] = {}
    needs = []
    for shard in plan.shards:
        seat = (shard.stage, shard.replica)
        team = teams.setdefault(seat, len(teams)) if cut else -1
        speed = peak_flops.get(shard.gpu_uuid, 0.0)
        needs.append(RankRequirement(shard.likely_bytes, speed, team, shard.gpu_uuid))
    return needs


def first_start(
    calendar: Calendar,
    candidates: Sequence[Candidate],
    needs: Sequence[RankRequirement],
    search: SlotSearch,
    *,
    duration_seconds: int,
    nodes: int = 1,
) -> EarliestStart | None:
    """Return the first Window of a length with a Gpu for every rank. None: there is
    none.

    Deterministic: of several suitable Gpus the Plan's own come first, then those with
    the least memory, so that large cards stay free.
    """
    for number, start in enumerate(starts(calendar, search)):
        if number >= MOST_STARTS:
            return None
        window = window_from(
            start,
            duration_seconds=duration_seconds,
            grid_seconds=search.grid_seconds,
            longest_seconds=search.longest_seconds,
        )
        free = [
            one
            for one in candidates
            if one.gpu.bookable and not calendar.first_overlap(one.gpu.pk, window)
        ]
        found = match(free, needs, nodes=nodes)
        if found is not None:
            same = [one.uuid for one in found] == [need.uuid for need in needs]
            return EarliestStart(window, tuple(found), same)
    return None


def match(
    free: Sequence[Candidate], needs: Sequence[RankRequirement], *, nodes: int = 1
) -> list[Candidate] | None:
    """Return a Gpu for every rank, on this many Nodes. None: there is no solution."""
    by_node: dict[str, list[Candidate]] = {}
    for one in free:
        by_node.setdefault(one.gpu.node, []).append(one)
    own = {need.uuid for need in needs}
    names = sorted(
        by_node, key=lambda name: (-sum(c.uuid in own for c in by_node[name]), name)
    )
    for number, chosen in enumerate(combinations(names, min(nodes, len(names)))):
        if number >= MOST_NODE_SETS:
            return None
        there = [one for name in chosen for one in by_node[name]]
        found = _match_teams(there, needs)
        if found is not None:
            return found
    return None


def _match_teams(
    free: Sequence[Candidate], needs: Sequence[RankRequirement]
) -> list[Candidate] | None:
    """Match teams with groups of fast links, the largest need first. Or all ranks."""
    teams: dict[int, list[int]] = {}
    for rank, need in enumerate(needs):
        teams.setdefault(need.team, []).append(rank)
    found: dict[int, Candidate] = {}
    left = list(free)
    order = sorted(
        teams, key=lambda team: (-max(needs[r].memory_bytes for r in teams[team]), team)
    )
    for team in order:
        ranks = teams[team]
        fit = None
        for group in _groups(left) if team >= 0 else [left]:
            fit = _match([needs[rank] for rank in ranks], group)
            if fit is not None:
                break
        if fit is None:
            return None
        found.update(zip(ranks, fit, strict=True))
        taken = {one.uuid for one in fit}
        left = [one for one in left if one.uuid not in taken]
    return [found[rank] for rank in range(len(needs))]


def _groups(free: Iterable[Candidate]) -> list[list[Candidate]]:
    """Return the Gpus by fast links, the smallest group first."""
    groups: dict[tuple[str, str], list[Candidate]] = {}
    for one in free:
        if one.link_group:
            groups.setdefault((one.gpu.node, one.link_group), []).append(one)
    return sorted(groups.values(), key=lambda group: (len(group), group[0].uuid))


def _match(
    needs: Sequence[RankRequirement], free: Sequence[Candidate]
) -> list[Candidate] | None:
    """Match by Kuhn's augmenting paths. Each rank tries its own Gpu first."""
    if len(free) < len(needs):
        return None
    options = [_suitable_gpus(need, free) for need in needs]
    holder: dict[int, int] = {}

    def place(rank: int, seen: set[int]) -> bool:
        for spot in options[rank]:
            if spot in seen:
                continue
            seen.add(spot)
            if spot not in holder or place(holder[spot], seen):
                holder[spot] = rank
                return True
        return False

    if not all(place(rank, set()) for rank in range(len(needs))):
        return None
    spots = {rank: spot for spot, rank in holder.items()}
    return [free[spots[rank]] for rank in range(len(needs))]


def _suitable_gpus(need: RankRequirement, free: Sequence[Candidate]) -> list[int]:
    """Return the Gpus that suit a rank, the best first."""
    enough = [
        spot
        for spot, one in enumerate(free)
        if one.gpu.memory_total_bytes >= need.memory_bytes
        and one.peak_flops >= SPEED_TOLERANCE * need.peak_flops
    ]
    return sorted(
        enough,
        key=lambda spot: (
            free[spot].uuid != need.uuid,
            free[spot].gpu.memory_total_bytes,
            free[spot].peak_flops,
            free[spot].gpu.index,
            free[spot].uuid,
        ),
    )


def later_starts(calendar: Calendar, search: SlotSearch, most: int) -> list[datetime]:
    """Return the starts to plan for: the first, and each at which a Gpu becomes
    free.
    """
    found = []
    for start in starts(calendar, search):
        found.append(start)
        if len(found) >= most:
            break
    return found

"""Which Gpus to take of those that would do. Pure.

Best fit, in this order: one node and one class with the least memory that is
enough (a small task leaves the large cards alone), then the group that it
leaves fewest Gpus of (large gaps stay whole), then the requester's favourites, then
the lowest indices. Only
when no node has enough Gpus of one class: one node with several classes, then
one class over several nodes, then anything that fits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reservations.rules.calendar import CalendarGpu


def choices(free: Sequence[CalendarGpu], count: int) -> list[tuple[CalendarGpu, ...]]:
    """Return the sets of ``count`` Gpus worth taking, best first.

    Sets of one node and one class as long as there is one; see the module.
    """
    return [_first(group, count) for group in groups_of(free, count)]


def groups_of(free: Sequence[CalendarGpu], count: int) -> list[list[CalendarGpu]]:
    """Return the groups that have ``count`` Gpus, best fit first; see the module."""
    if count < 1:
        raise ValueError(f"cannot choose {count} Gpus")
    for key in (
        lambda gpu: (gpu.node, gpu.gpu_class),
        lambda gpu: (gpu.node,),
        lambda gpu: (gpu.gpu_class,),
        lambda _gpu: (),
    ):
        groups: dict[tuple[str, ...], list[CalendarGpu]] = defaultdict(list)
        for gpu in free:
            groups[key(gpu)].append(gpu)
        enough = {name: g for name, g in groups.items() if len(g) >= count}
        if enough:
            ranked = sorted(enough.items(), key=lambda item: _fit(item[1], item[0]))
            return [group for _name, group in ranked]
    return []


def _fit(
    group: Sequence[CalendarGpu], name: tuple[str, ...]
) -> tuple[int, int, bool, tuple[str, ...]]:
    liked = any(gpu.favourite for gpu in group)
    return min(gpu.memory_total_bytes for gpu in group), len(group), not liked, name


def _first(group: Sequence[CalendarGpu], count: int) -> tuple[CalendarGpu, ...]:
    order = sorted(
        group, key=lambda g: (g.weight, not g.favourite, g.node, g.index, g.pk)
    )
    return tuple(order[:count])

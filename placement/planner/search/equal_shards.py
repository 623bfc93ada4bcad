"""Equal shards on unequal Gpus: fewest Gpus first, then the smallest load / free.

NCCL refuses two ranks on one Gpu, so discrete shards of one Gpu are one rank with an
uneven share (docs/design/placement.md#one-rank). A used Gpu holds `fixed + n x shard`
bytes. Taking the Gpus that hold most is optimal for every bound, because shards are
equal. The bound is bisected between nothing and the best known one and snaps to the
load of an actual Gpu, and the search ends when nothing is strictly below it. All
numbers are whole, so the optimum is exact. Cost: about 30 x G log G.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from placement.planner.search.bottleneck_partition import least_loaded


@dataclass(frozen=True, slots=True)
class Coalesced:
    """Shards per Gpu (0: not used) and the largest load / free."""

    shards: tuple[int, ...]
    max_ratio: float

    @property
    def gpus_used(self) -> int:
        """Return the number of Gpus with at least one shard."""
        return sum(count > 0 for count in self.shards)


def zero_coalesce(
    *,
    shards: int,
    shard_bytes: float | Fraction,
    fixed_bytes: Sequence[float],
    free_bytes: Sequence[int],
    fewest: bool = True,
) -> Coalesced | None:
    """Return the Gpus of `shards` equal shards; None if there is not room for all.

    Args:
        shards: at least 1.
        shard_bytes: of one; a Fraction if the total does not divide evenly.
        fixed_bytes: additional bytes of each used Gpu.
        fewest: False spreads them over all Gpus that have room.
    """
    shard = Fraction(shard_bytes)
    fixeds = [Fraction(fixed) for fixed in fixed_bytes]
    unit = lcm(shard.denominator, *(fixed.denominator for fixed in fixeds))
    rack = _Rack(
        shards,
        int(shard * unit),
        [int(fixed * unit) for fixed in fixeds],
        [free * unit for free in free_bytes],
    )
    room = rack.room(rack.frees)
    most = sorted(room, reverse=True)
    count, held = 0, 0
    while count < len(most) and most[count] and (held < shards or not fewest):
        held += most[count]
        count += 1
    if held < shards:
        return None
    best = rack.minimise(count)
    load, at = rack.worst(best)
    return Coalesced(best, load / rack.frees[at] if load else 0.0)


@dataclass(frozen=True, slots=True)
class _Rack:
    """The numbers, scaled to whole ones."""

    shards: int
    shard: int
    fixeds: Sequence[int]
    frees: Sequence[int]

    def room(self, caps: Sequence[int]) -> list[int]:
        """Return the shards that each Gpu holds within its cap."""
        held = []
        for fixed, cap in zip(self.fixeds, caps, strict=True):
            if cap < fixed or cap < 0:
                held.append(0)
            elif self.shard == 0:
                held.append(self.shards)
            else:
                held.append(min(self.shards, (cap - fixed) // self.shard))
        return held

    def within(self, caps: Sequence[int], count: int) -> tuple[int, ...] | None:
        """Return shards per Gpu, on at most `count` Gpus, each within its cap."""
        most = self.room(caps)
        order = sorted(range(len(most)), key=lambda gpu: -most[gpu])[:count]
        if sum(most[gpu] for gpu in order) < self.shards:
            return None
        left = self.shards
        given = [0] * len(most)
        for position, gpu in enumerate(order):
            after = len(order) - position - 1
            given[gpu] = min(most[gpu], max(0, left - after))
            left -= given[gpu]
        return tuple(given) if left == 0 else self._filled(given, most, order, left)

    def _filled(
        self, given: list[int], most: Sequence[int], order: Sequence[int], left: int
    ) -> tuple[int, ...]:
        """Give the first Gpu the shares reserved for Gpus that had no room."""
        for gpu in order:
            more = min(left, most[gpu] - given[gpu])
            given[gpu] += more
            left -= more
        return tuple(given)

    def worst(self, given: Sequence[int]) -> tuple[int, int]:
        """Return (scaled bytes, Gpu) of the largest load / free, compared as
        fractions.
        """
        load, at = 0, next(gpu for gpu, number in enumerate(given) if number)
        for gpu, number in enumerate(given):
            size = self.fixeds[gpu] + number * self.shard
            if number and size * self.frees[at] > load * self.frees[gpu]:
                load, at = size, gpu
        return load, at

    def minimise(self, count: int) -> tuple[int, ...]:
        """Return the shards per Gpu with the smallest largest load / free."""
        best = self.within(self.frees, count)
        assert best is not None, "the caller has seen that they fit"
        return least_loaded(
            best,
            frees=self.frees,
            worst=self.worst,
            within=lambda caps: self.within(caps, count),
        )

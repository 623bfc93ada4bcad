"""Which Gpus? For ranks that all need the same, and for one alone.

Ranks of equal need: any Gpu with enough room will do, the slowest decides the speed
and the slowest link the traffic. So: Gpus joined by fast links before others, then the
fastest, then the least busy. One alone: the least utilized that fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from placement.domain.offer import GpuOffer


@dataclass(frozen=True, slots=True)
class Shortage:
    """The Gpu that is too small, and by how many bytes; gpu None: too few Gpus."""

    gpu: GpuOffer | None
    missing_bytes: int


def least_utilized(offers: Sequence[GpuOffer], need_bytes: int) -> GpuOffer | Shortage:
    """The least utilized Gpu with room; among equals the faster, then the fuller."""
    fitting = [offer for offer in offers if offer.free_bytes >= need_bytes]
    if not fitting:
        largest = max(offers, key=lambda offer: offer.free_bytes, default=None)
        free = largest.free_bytes if largest else 0
        return Shortage(largest, need_bytes - free)
    return min(
        fitting,
        key=lambda offer: (
            offer.compute_processes > 0,
            round(offer.busy_pct / 5),
            -offer.peak_flops,
            offer.free_bytes,
            offer.node,
            offer.index,
        ),
    )


def choose_equal(
    offers: Sequence[GpuOffer], count: int, need_bytes: int
) -> tuple[GpuOffer, ...] | Shortage:
    """`count` Gpus of one Node that all have `need_bytes`, the best for speed."""
    fitting = [offer for offer in offers if offer.free_bytes >= need_bytes]
    if len(fitting) < count:
        ranked = sorted(offers, key=lambda offer: -offer.free_bytes)
        if len(ranked) < count:
            return Shortage(None, need_bytes)
        short = ranked[count - 1]
        return Shortage(short, need_bytes - short.free_bytes)
    groups: dict[str, list[GpuOffer]] = {}
    for offer in fitting:
        groups.setdefault(offer.link_group, []).append(offer)
    joined = [
        _fastest(group, count)
        for name, group in groups.items()
        if name and len(group) >= count
    ]
    best = _fastest(fitting, count)
    for group in joined:
        if _speed(group) >= 0.8 * _speed(best):
            best = group
            break
    return tuple(sorted(best, key=lambda offer: offer.index))


def _fastest(offers: Sequence[GpuOffer], count: int) -> list[GpuOffer]:
    ranked = sorted(
        offers,
        key=lambda offer: (
            -offer.peak_flops * offer.share_ratio,
            offer.busy_pct,
            -offer.free_bytes,
            offer.index,
        ),
    )
    return ranked[:count]


def _speed(offers: Sequence[GpuOffer]) -> float:
    return min(offer.peak_flops * offer.share_ratio for offer in offers)

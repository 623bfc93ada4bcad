"""The choice of Gpus for ranks that all need the same, and for a single rank.

A single rank gets the least utilized Gpu that fits. For several ranks any Gpu with
enough room is possible, so the n-th roomiest decides whether they fit, and the fastest
with room are used.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from placement.planner.values.gpu_availability import GpuOffer


@dataclass(frozen=True, slots=True)
class Shortage:
    """The Gpu that is too small, and by how many bytes; gpu None: too few Gpus."""

    gpu: GpuOffer | None
    missing_bytes: int


def least_utilized(offers: Sequence[GpuOffer], need_bytes: int) -> GpuOffer | Shortage:
    """Return the least utilized healthy Gpu with room.

    Among equals it is the faster, then the fuller.
    """
    fitting = [offer for offer in offers if offer.free_bytes >= need_bytes]
    if not fitting:
        largest = max(offers, key=lambda offer: offer.free_bytes, default=None)
        free = largest.free_bytes if largest else 0
        return Shortage(largest, need_bytes - free)
    return min(
        fitting,
        key=lambda offer: (
            bool(offer.health),
            offer.compute_processes > 0,
            round(offer.busy_pct / 5),
            -offer.peak_flops,
            offer.free_bytes,
            offer.node,
            offer.index,
            offer.uuid,
        ),
    )


def room_for(
    offers: Sequence[GpuOffer], count: int, need_bytes: int
) -> Shortage | None:
    """Return None if `count` Gpus have `need_bytes` each; otherwise the nearest one."""
    if len(offers) < count:
        return Shortage(None, need_bytes)
    ranked = sorted(offers, key=lambda offer: -offer.free_bytes)
    short = ranked[count - 1]
    if short.free_bytes >= need_bytes:
        return None
    return Shortage(short, need_bytes - short.free_bytes)


def fastest(offers: Sequence[GpuOffer], count: int) -> tuple[GpuOffer, ...]:
    """Return the fastest `count`, in the order of their places.

    Among equals come those without other processes, then the least busy, then the
    fullest, so that large cards stay free for the jobs that need them.
    """
    ranked = sorted(
        offers,
        key=lambda offer: (
            -offer.peak_flops * offer.share_ratio,
            bool(offer.health),
            offer.compute_processes > 0,
            offer.busy_pct,
            offer.weight,
            offer.free_bytes,
            offer.node,
            offer.index,
            offer.uuid,
        ),
    )
    return tuple(
        sorted(ranked[:count], key=lambda offer: (offer.node, offer.index, offer.uuid))
    )

"""Which Gpus? For ranks that all need the same, and for one alone.

One alone: the least utilized that fits. Several: any Gpu with enough room will do, so
the n-th roomiest decides whether they fit, and the fastest with room are taken.
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
    """The least utilized healthy Gpu with room; among equals the faster, then the
    fuller."""
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
    """None if `count` Gpus have `need_bytes` each; else the one nearest to it."""
    if len(offers) < count:
        return Shortage(None, need_bytes)
    ranked = sorted(offers, key=lambda offer: -offer.free_bytes)
    short = ranked[count - 1]
    if short.free_bytes >= need_bytes:
        return None
    return Shortage(short, need_bytes - short.free_bytes)


def fastest(offers: Sequence[GpuOffer], count: int) -> tuple[GpuOffer, ...]:
    """The fastest `count`, in the order of their places.

    Among equals those that nobody computes on, then the least busy, then the fullest:
    large cards stay free for what needs them.
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

"""Estimate the memory of a served model, and choose the best Gpu for it.

The estimate adds the weights as stored and the tensors between operators. These are
estimated from the batch, because a file does not give the sizes of all tensors. ONNX
Runtime's arena grows by doubling. The page shows the measured memory beside it. Likely
bytes are

    weights x ARENA_RATIO + batch x FLOW_BYTES_PER_ROW

and the context of the process is added once for all models of a server.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placement.planner.values.gpu_availability import GpuOffer
from telemetry.protocol.sentences import sentence

ARENA_RATIO = 1.2
FLOW_BYTES_PER_ROW = 2 * 2**20
"""Tensors between operators, per row of the batch: a safe guess."""
LEAST_BYTES = 16 * 2**20
CONTEXT_BYTES = 500 * 2**20
"""CUDA context, cuDNN and workspaces of one process
(docs/design/placement.md#outside-the-tensors)."""
ROOM_RATIO = 0.9
"""Part of a Gpu's free memory that models may take together."""
ALIKE_PCT = 10.0
"""Utilizations that differ by less count as equal."""
GIB = 2**30


def likely_bytes(weight_bytes: int, batch: int) -> int:
    """Return the likely memory of a loaded model, for batches up to this one.

    >>> likely_bytes(10 * 2**20, 1) == LEAST_BYTES
    True
    """
    flow = batch * FLOW_BYTES_PER_ROW
    return max(LEAST_BYTES, int(weight_bytes * ARENA_RATIO) + flow)


def room_bytes(offer: GpuOffer) -> int:
    """Return the memory that models may take together on a Gpu."""
    return max(0, int((offer.free_bytes - CONTEXT_BYTES) * ROOM_RATIO))


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """The Gpu to serve on, or why there is none."""

    offer: GpuOffer | None
    reasons: tuple[str, ...] = ()


def best_offer(
    offers: Sequence[GpuOffer],
    needs_bytes: int,
    *,
    without: Mapping[str, str] | None = None,
) -> GpuChoice:
    """Return the least used Gpu that holds a model. Of equal ones the smallest,
    emptiest.

    Args:
        offers: Gpus that the calendar and the live readings leave.
        needs_bytes: of the loaded model.
        without: UUIDs of excluded Gpus, each with the reason.
    """
    fits: list[GpuOffer] = []
    reasons: list[str] = []
    for offer in offers:
        if without and offer.uuid in without:
            reasons.append(f"{offer.label} {without[offer.uuid]}")
        elif not offer.bookable:
            reasons.append(
                sentence("{offer} is {reason}", offer=offer.label, reason=offer.reason)
            )
        elif room_bytes(offer) < needs_bytes:
            reasons.append(
                sentence(
                    "{offer} has {offer2} GiB free, and {needs} GiB are needed",
                    offer=offer.label,
                    offer2=f"{room_bytes(offer) / GIB:.2f}",
                    needs=f"{needs_bytes / GIB:.2f}",
                )
            )
        else:
            fits.append(offer)
    if not fits:
        return GpuChoice(None, tuple(reasons))
    return GpuChoice(min(fits, key=_order), tuple(reasons))


def _order(offer: GpuOffer) -> tuple[object, ...]:
    return (
        bool(offer.health),
        int((offer.util_pct or 0.0) // ALIKE_PCT),
        offer.compute_processes,
        offer.weight,
        offer.memory_total_bytes,
        -offer.free_bytes,
        offer.label,
    )

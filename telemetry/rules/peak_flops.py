"""Peak performance of a card: dense 16-bit FLOP/s by its class.

Figures are those of the table of cards (`telemetry/protocol/gpu_cards.py`). A card that
is not in the table has 0: unknown, never a guess.
"""

from __future__ import annotations

from telemetry.protocol.gpu_cards import card_of
from telemetry.protocol.units import GIB_BYTES

WEIGHT_STEP_BYTES = 8 * GIB_BYTES
"""docs/design/fair-booking.md#terms: a Gpu's default weight is its memory in 8 GiB
units."""


def peak_flops_of(gpu_class: str) -> float:
    """Return the dense 16-bit FLOP/s of a class; 0 if it is not in the table.

    >>> peak_flops_of("A100-SXM4-80GB") / 1e12, peak_flops_of("GeForce 256")
    (312.0, 0.0)
    """
    card = card_of(gpu_class)
    return card.half_flops if card else 0.0


def default_weight(memory_total_bytes: int) -> int:
    """Return the cost of one second of such a Gpu: memory in 8 GiB units, at least 1.

    >>> default_weight(85_899_345_920), default_weight(4 * 2**30)
    (10, 1)
    """
    return max(1, round(memory_total_bytes / WEIGHT_STEP_BYTES))

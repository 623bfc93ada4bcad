"""Peak performance of a card: dense 16-bit FLOP/s by its class.

Figures are NVIDIA's, from each product's data sheet or architecture white
paper: tensor cores, FP16 or BF16 in, FP32 accumulation, *without* structured
sparsity (the data sheets of Ampere and later print twice that). A card that is
not in the table has 0: unknown, never a guess.
"""

from __future__ import annotations

from telemetry.protocol.units import GIB_BYTES

WEIGHT_STEP_BYTES = 8 * GIB_BYTES
"""docs/design/fair-booking.md#terms: a Gpu's default weight is its memory in 8 GiB
units."""

TERA = 1e12

_PEAKS: tuple[tuple[str, float], ...] = (
    # The first name found in the class counts, so longer names come first.
    ("B200", 2250 * TERA),
    ("H200", 989 * TERA),
    ("H100 NVL", 835 * TERA),
    ("H100 PCIE", 756 * TERA),
    ("H100", 989 * TERA),
    ("A100", 312 * TERA),
    ("A30", 165 * TERA),
    ("V100-PCIE", 112 * TERA),
    ("V100", 125 * TERA),
    ("L40S", 362 * TERA),
    ("L40", 181 * TERA),
    ("L4", 121 * TERA),
    ("RTX 6000 ADA", 364 * TERA),
    ("RTX A6000", 155 * TERA),
    ("A40", 150 * TERA),
    ("A10", 125 * TERA),
    ("RTX 5090", 209.5 * TERA),
    ("RTX 4090", 165 * TERA),
    ("RTX 3090", 71 * TERA),
    ("RTX 2080 TI", 53.8 * TERA),
    ("T4", 65 * TERA),
)


def peak_flops_of(gpu_class: str) -> float:
    """Return the dense 16-bit FLOP/s of a class; 0 if it is not in the table.

    >>> peak_flops_of("A100-SXM4-80GB") / 1e12, peak_flops_of("GeForce 256")
    (312.0, 0.0)
    """
    words = f" {gpu_class.upper()} ".replace("-SXM", " SXM")
    for name, peak in _PEAKS:
        at = words.find(name)
        # Match whole words: "A10" is not "A100", "T4" is not "T400".
        rest = words[at + len(name) :]
        if at > 0 and words[at - 1] in " -" and rest[0] in " -":
            # A "Ti" or "SUPER" is a different product.
            return 0.0 if rest.split()[:1] in (["TI"], ["SUPER"]) else peak
    return 0.0


def default_weight(memory_total_bytes: int) -> int:
    """Return the cost of one second of such a Gpu: memory in 8 GiB units, at least 1.

    >>> default_weight(85_899_345_920), default_weight(4 * 2**30)
    (10, 1)
    """
    return max(1, round(memory_total_bytes / WEIGHT_STEP_BYTES))

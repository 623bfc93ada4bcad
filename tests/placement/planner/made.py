"""Values for placement's tests: offers and small models with defaults."""

from placement.planner.model.spec import ModelSpec
from placement.planner.model.well_known import well_known_spec
from placement.planner.values.gpu_availability import GpuOffer

GIB = 2**30


def make_offer(index: int = 0, **changes: object) -> GpuOffer:
    """An idle 24 GiB card on node `lab-a`; free and used follow each other."""
    total = int(changes.pop("total_gib", 24) * GIB)  # type: ignore[operator]
    free = int(changes.pop("free_gib", 23) * GIB)  # type: ignore[operator]
    fields: dict[str, object] = {
        "uuid": f"GPU-{changes.get('node', 'lab-a')}-{index}",
        "node": "lab-a",
        "index": index,
        "name": "NVIDIA GeForce RTX 3090",
        "gpu_class": "rtx3090",
        "memory_total_bytes": total,
        "used_bytes": total - free,
        "free_bytes": free,
        "util_pct": 0.0,
        "peak_flops": 71e12,
    }
    return GpuOffer(**{**fields, **changes})  # type: ignore[arg-type]


def make_offers(*free_gib: float, **changes: object) -> list[GpuOffer]:
    """One offer per number of free GiB, numbered from 0."""
    return [
        make_offer(index, free_gib=free, **changes)
        for index, free in enumerate(free_gib)
    ]


def tiny() -> ModelSpec:
    """The demo model of 10 M parameters."""
    return well_known_spec("tiny-gpt")

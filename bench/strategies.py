"""The whole strategy search: the cases, and the time that each may take.

See docs/design/placement.md#promise-6.

`cases()` is called by bench/placement.py. It can also be run alone: python -m
bench.strategies
"""

import platform
from collections.abc import Callable
from dataclasses import dataclass

from bench.rig.cpu_time import milliseconds
from placement.planner.model.families.config_json import parse_config
from placement.planner.model.spec import ModelSpec
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.planner import plan
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.workload import Workload

GIB = 2**30
TARGET_MS = 300.0


@dataclass(frozen=True)
class Case:
    """One search; `work` runs it once."""

    name: str
    work: Callable[[], object]
    target_ms: float = TARGET_MS


def model(layers: int) -> ModelSpec:
    """Return a LLaMA-like model with this many layers, both ends counted."""
    return parse_config(
        {
            "model_type": "llama",
            "hidden_size": 4096,
            "num_hidden_layers": layers - 2,
            "intermediate_size": 11008,
        }
    )


def offers(count: int, total_gib: int, *, classes: int, nvlink: bool) -> list[GpuOffer]:
    """Return Gpus of one Node in some classes of room, load and speed; in fours by
    NVLink.
    """
    made = []
    for index in range(count):
        kind = index % classes
        used = 0.5 + 16.0 * kind / classes
        made.append(
            GpuOffer(
                uuid=f"GPU-{index}",
                node="bench",
                index=index,
                name="NVIDIA A100",
                gpu_class="a100",
                memory_total_bytes=total_gib * GIB,
                used_bytes=int(used * GIB),
                free_bytes=int((total_gib - used) * GIB),
                compute_processes=kind % 3,
                util_pct=10.0 * kind,
                peak_flops=312e12,
                link_group=f"nv{index // 4}" if nvlink else "",
            )
        )
    return made


def cases() -> list[Case]:
    """Return cases of 100 layers on 8 and 16 Gpus, alike and not, with and without
    NVLink.
    """
    spec = model(100)
    workload = Workload(batch=32, sequence_length=2048)
    made = []
    for count, classes in ((8, 1), (8, 3), (8, 8), (16, 1), (16, 2), (16, 3)):
        for total in (24, 80):
            for nvlink in (False, True):
                cards = offers(count, total, classes=classes, nvlink=nvlink)
                name = (
                    f"100 layers x {count} GPUs of {total} GiB, {classes} classes"
                    f"{', NVLink' if nvlink else ''}"
                )
                made.append(Case(name, lambda c=cards: plan(spec, workload, c)))  # type: ignore[misc]
    return made + cluster_cases()


def cluster(count: int) -> list[GpuOffer]:
    """Return nodes of eight Gpus, of four kinds in turn, with a network between
    them.
    """
    kinds = (("NVIDIA H100", 989e12, 80), ("NVIDIA A100", 312e12, 80))
    kinds += (("NVIDIA A100", 312e12, 40), ("NVIDIA L40S", 362e12, 48))
    made = []
    for number in range(count):
        node = number // 8
        name, flops, total = kinds[node % 4]
        made.append(
            GpuOffer(
                uuid=f"GPU-{number}",
                node=f"n{node:03}",
                index=number % 8,
                name=name,
                gpu_class=f"{name}-{total}",
                memory_total_bytes=total * 10**9,
                used_bytes=0,
                free_bytes=total * 10**9,
                peak_flops=flops,
                link_group="" if node % 4 == 3 else f"nv{node}",
                network_bytes_per_second=50e9,
            )
        )
    return made


def cluster_cases() -> list[Case]:
    """Return cases of 64 and 1,024 Gpus of four kinds."""
    made = []
    for count, target in ((64, 300.0), (1024, 2000.0)):
        gpus = cluster(count)
        for name, batch in (
            ("llama-3-8b", 256),
            ("llama-3-70b", 1024),
            ("mixtral-8x7b", 512),
            ("mixtral-8x22b", 512),
        ):
            asked = Workload(batch=batch, sequence_length=4096, precision="mixed_fp16")
            spec = well_known_spec(name)
            made.append(
                Case(
                    f"{name} x {count} GPUs of 4 kinds",
                    lambda s=spec, w=asked, g=gpus: plan(s, w, g),  # type: ignore[misc]
                    target,
                )
            )
    return made


def main() -> None:
    """Print the table."""
    print(f"{platform.machine()}, Python {platform.python_version()}\n")
    for case in cases():
        took = milliseconds(case.work)
        verdict = "ok" if took <= case.target_ms else "TOO SLOW"
        print(f"{case.name:<58}{took:>9.1f}{case.target_ms:>9.0f}  {verdict}")


if __name__ == "__main__":
    main()

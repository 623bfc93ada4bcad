"""How long splits, estimates and whole plans take: CPU milliseconds, median of 5.

python -m bench.split
"""

import platform
import random
import statistics
import time
from collections.abc import Callable

from placement.domain.estimate import estimate
from placement.domain.families import parse_config
from placement.domain.offer import GpuOffer
from placement.domain.pipeline import PipelineProblem, split_pipeline
from placement.domain.planner import plan
from placement.domain.spec import ModelSpec
from placement.domain.split import split_bytes
from placement.domain.workload import Workload

GIB = 2**30
RUNS = 5


def milliseconds(work: Callable[[], object]) -> float:
    """CPU time of one call, median of 5."""
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        work()
        times.append((time.process_time() - start) * 1000)
    return statistics.median(times)


def row(what: str, work: Callable[[], object], target_ms: float) -> None:
    """Measure and print one line."""
    took = milliseconds(work)
    verdict = "ok" if took <= target_ms else "TOO SLOW"
    print(f"{what:<58}{took:>9.1f}{target_ms:>9.0f}  {verdict}")


def cards(count: int, classes: int, whole_bytes: float) -> list[int]:
    """Free bytes of `count` Gpus of some classes, with 1.3 times the room needed."""
    shares = [8.0 + 3.0 * (i % classes) for i in range(count)]
    scale = 1.3 * whole_bytes / sum(shares)
    return [int(share * scale) for share in shares]


def layers_of(count: int) -> list[int]:
    """Uneven layers, the same on every run."""
    random.seed(count)
    return [random.randint(50, 900) << 20 for _ in range(count)]


def splits() -> None:
    """Contiguous splits and pipelines."""
    for count, gpus, classes, target in (
        (96, 8, 8, 50),
        (1000, 8, 8, 100),
        (96, 16, 3, 300),
        (1000, 16, 3, 300),
    ):
        layers = layers_of(count)
        frees = cards(gpus, classes, sum(layers))
        name = f"{count} layers x {gpus} GPUs of {classes} classes"
        row(name, lambda a=layers, b=frees: split_bytes(a, b), target)  # type: ignore[misc]
        problem = PipelineProblem(
            state_bytes=layers,
            activation_bytes=[size // 50 for size in layers],
            seconds=[size / 1e9 for size in layers],
            free_bytes=frees,
            speeds=[1.0 if i % classes else 0.7 for i in range(gpus)],
            microbatches=16,
            moment_bytes=[size / 10 for size in layers],
        )
        row("  the same as a 1F1B pipeline", lambda p=problem: split_pipeline(p), 300)  # type: ignore[misc]


def model(blocks: int) -> ModelSpec:
    """A LLaMA-like model with this many blocks."""
    return parse_config(
        {
            "model_type": "llama",
            "hidden_size": 4096,
            "num_hidden_layers": blocks,
            "intermediate_size": 11008,
        }
    )


def offers(count: int, total_gib: int, *, alike: bool, links: str) -> list[GpuOffer]:
    """Gpus of one Node, alike or all differently full."""
    made = []
    for index in range(count):
        used = 0.5 if alike else 0.5 + 2.1 * index
        free = total_gib - used
        made.append(
            GpuOffer(
                uuid=f"GPU-{index}",
                node="bench",
                index=index,
                name="NVIDIA A100",
                gpu_class="a100",
                memory_total_bytes=total_gib * GIB,
                used_bytes=int(used * GIB),
                free_bytes=int(free * GIB),
                compute_processes=0 if alike else index % 3,
                util_pct=0.0 if alike else 10.0 * index,
                peak_flops=312e12,
                link_group=links,
            )
        )
    return made


def plans() -> None:
    """Estimates and the whole search over strategies."""
    spec = model(98)
    workload = Workload(batch=32, sequence_length=2048)
    row("estimate, 100 layers", lambda: estimate(spec, workload), 5)
    for total in (24, 80):
        for alike in (True, False):
            kind = "alike" if alike else "all different"
            cards_here = offers(8, total, alike=alike, links="")
            name = f"plan, 100 layers x 8 GPUs of {total} GiB, {kind}"
            row(name, lambda c=cards_here: plan(spec, workload, c), 300)  # type: ignore[misc]
    many = offers(16, 80, alike=True, links="nv")
    row("plan, 100 layers x 16 GPUs, NVLink", lambda: plan(spec, workload, many), 300)


def main() -> None:
    """Print the table."""
    print(f"{platform.machine()}, Python {platform.python_version()}\n")
    print(f"{'what':<58}{'ms':>9}{'target':>9}")
    splits()
    plans()


if __name__ == "__main__":
    main()

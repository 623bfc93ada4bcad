"""Measure splits: their time, their quality, and those of other methods.

See docs/design/placement.md#promise-6 and #promise-7.

python -m bench.placement [--instances 300]

CPU milliseconds, median of 5. Other methods get the same generated inputs, all of which
have a split that fits. A "needless spill" is an answer that still leaves part of the
model off the Gpus, or over a Gpu's memory.
"""

import argparse
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import strategies
from bench.rig import rivals
from bench.rig.cpu_time import milliseconds
from placement.planner.search.bottleneck_partition import split_bytes
from placement.planner.search.pipeline_partition import PipelineProblem, split_pipeline


def row(what: str, work: Callable[[], object], target_ms: float) -> bool:
    """Measure and print one line. Return whether it is fast enough."""
    took = milliseconds(work)
    ok = took <= target_ms
    print(f"{what:<60}{took:>9.1f}{target_ms:>9.0f}  {'ok' if ok else 'TOO SLOW'}")
    return ok


def cards(count: int, classes: int, whole_bytes: float) -> list[int]:
    """Return free bytes of `count` Gpus of some classes, with 1.3 times the needed
    room.
    """
    shares = [8.0 + 3.0 * (i % classes) for i in range(count)]
    scale = 1.3 * whole_bytes / sum(shares)
    return [int(share * scale) for share in shares]


def splits() -> bool:
    """Contiguous splits and pipelines over unequal Gpus."""
    print(f"\n{'Splits':<60}{'ms':>9}{'target':>9}")
    fine = True
    for count, gpus, classes, target in (
        (96, 8, 8, 50),
        (1000, 8, 8, 100),
        (96, 16, 3, 300),
        (1000, 16, 3, 300),
    ):
        draw = random.Random(count)
        layers = [draw.randint(50, 900) << 20 for _ in range(count)]
        frees = cards(gpus, classes, sum(layers))
        name = f"{count} layers x {gpus} GPUs of {classes} classes"
        fine &= row(name, lambda a=layers, b=frees: split_bytes(a, b), target)  # type: ignore[misc]
        problem = PipelineProblem(
            state_bytes=layers,
            activation_bytes=[size // 50 for size in layers],
            seconds=[size / 1e9 for size in layers],
            free_bytes=frees,
            speeds=[1.0 if i % classes else 0.7 for i in range(gpus)],
            microbatches=16,
            moment_bytes=[size / 10 for size in layers],
        )
        name = "  the same as a 1F1B pipeline, two speeds"
        fine &= row(name, lambda p=problem: split_pipeline(p), 300)  # type: ignore[misc]
    return fine


def searches() -> bool:
    """The whole search over strategies."""
    print(f"\n{'The whole strategy search':<60}{'ms':>9}{'target':>9}")
    return all(
        [row(case.name, case.work, case.target_ms) for case in strategies.cases()]
    )


def looks() -> bool:
    """Measure one look at a running pipeline of four Gpus among sixteen, with its
    rows.
    """
    from bench.rig import cluster_look

    print(f"\n{'Looking again':<60}{'ms':>9}{'target':>9}")
    with cluster_look.running_job() as look:
        return row("one job, 16 GPUs of 2 nodes, 32 layers in 4 stages", look, 100)  # type: ignore[arg-type]


class Tally:
    """The results of one way of splitting over all instances."""

    def __init__(self) -> None:
        self.spills = 0
        self.over: list[float] = []
        self.ms: list[float] = []

    def add(self, outcome: rivals.Outcome, frees: Sequence[int], best: float) -> None:
        """Count a spill, or the excess of the largest load / free over the optimum."""
        if not outcome.whole:
            self.spills += 1
            return
        worst = max(
            load / free for load, free in zip(outcome.loads, frees, strict=True)
        )
        self.over.append(worst / best)

    def line(self, name: str, count: int) -> str:
        """Return one row of the table."""
        over = sorted(self.over) or [float("nan")]
        p90 = over[min(len(over) - 1, int(0.9 * len(over)))]
        return (
            f"{name:<38}{self.spills:>7}{100 * self.spills / count:>6.0f} %"
            f"{statistics.median(over):>9.3f}{p90:>9.3f}{over[-1]:>9.3f}"
            f"{statistics.median(self.ms):>10.2f}"
        )


def compare_rivals(count: int) -> bool:
    """Compare the planner with accelerate and simple rules on the same instances."""
    solvable = []
    for layers, frees in rivals.instances(4 * count, seed=1):
        best = split_bytes(layers, frees)
        if best is not None and len(solvable) < count:
            solvable.append((layers, frees, best.bottleneck))
    tallies: dict[str, Tally] = {}
    for layers, frees, best_ratio in solvable:
        module = rivals.accelerate_module(layers)

        def ours(a=layers, b=frees):  # type: ignore[no-untyped-def]
            split = split_bytes(a, b)
            assert split is not None
            loads = [0] * len(b)
            for piece in split.pieces:
                loads[piece.gpu] = sum(a[piece.first : piece.last])
            return rivals.Outcome(tuple(loads), True)

        ways: dict[str, Callable[[], rivals.Outcome]] = {
            "GPU Portal": ours,
            "accelerate infer_auto_device_map": lambda m=module, a=layers, b=frees: (  # type: ignore[misc]
                rivals.accelerate_map(m, a, b, balanced=False)
            ),
            "  after get_balanced_memory": lambda m=module, a=layers, b=frees: (  # type: ignore[misc]
                rivals.accelerate_map(m, a, b, balanced=True)
            ),
        }
        for name, rule in rivals.SIMPLE.items():
            ways[name] = lambda r=rule, a=layers, b=frees: r(a, b)  # type: ignore[misc]
        for name, way in ways.items():
            tally = tallies.setdefault(name, Tally())
            start = time.process_time()
            outcome = way()
            tally.ms.append((time.process_time() - start) * 1000)
            tally.add(outcome, frees, best_ratio)
    print(
        f"\n{f'{len(solvable)} solvable instances':<38}{'needless':>14}"
        f"{'largest load / free, over the optimum':>38}\n"
        f"{'':<38}{'spills':>14}{'median':>10}{'p90':>9}{'worst':>9}{'ms':>9}"
    )
    for name, tally in tallies.items():
        print(tally.line(name, len(solvable)))
    own = tallies["GPU Portal"]
    return own.spills == 0 and max(own.over) <= 1 + 1e-12


def main() -> int:
    """Print the tables. Return 1 if a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=300)
    asked = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}")
    kept = [splits(), searches(), looks(), compare_rivals(asked.instances)]
    print("\nAll promises kept." if all(kept) else "\nA promise is broken: see above.")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())

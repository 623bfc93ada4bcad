"""The schedule of a pipeline as a grid: who computes which microbatch when.

One-forward-one-backward (Narayanan et al., "Efficient Large-Scale Language Model
Training on GPU Clusters Using Megatron-LM", SC 2021, figure 4) and GPipe (Huang et
al., NeurIPS 2019, figure 2). Drawn with stages of equal length, a backward twice a
forward; the Plan's times are worked out from the real layers.
"""

from dataclasses import dataclass

from placement.domain.plan import Plan

FORWARD_UNITS, BACKWARD_UNITS = 1, 2
MOST_CELLS = 400
"""More microbatches than that on a screen show nothing."""


@dataclass(frozen=True)
class Cell:
    """One microbatch on one stage: forward or backward."""

    kind: str
    number: int
    x: int
    width: int


@dataclass(frozen=True)
class Schedule:
    """Rows of cells in stage order; what is empty between them is the bubble."""

    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    """(Gpu label, cells)."""
    width: int
    bubble_pct: float
    words: str


def schedule_of(plan: Plan) -> Schedule | None:
    """Return the schedule of a pipeline Plan; None for others, or for too many."""
    if plan.strategy not in ("pipeline", "gpipe"):
        return None
    stages, pieces = len(plan.shards), int(plan.launch.get("microbatches", 0))
    trains = plan.workload.trains
    if pieces < 1 or stages * pieces * (2 if trains else 1) > MOST_CELLS:
        return None
    rows = simulate(stages, pieces, gpipe=plan.strategy == "gpipe", backward=trains)
    width = max(cell.x + cell.width for row in rows for cell in row)
    busy = sum(cell.width for row in rows for cell in row)
    bubble = 100 * (1 - busy / (width * stages))
    return Schedule(
        rows=tuple(
            (shard.gpu_label, row) for shard, row in zip(plan.shards, rows, strict=True)
        ),
        width=width,
        bubble_pct=bubble,
        words=f"{stages} stages, {pieces} microbatches, {bubble:.0f} % waiting",
    )


def simulate(
    stages: int, pieces: int, *, gpipe: bool, backward: bool
) -> list[tuple[Cell, ...]]:
    """Start each microbatch as soon as its stage and its input are ready.

    >>> [[(c.kind, c.number, c.x) for c in row]
    ...  for row in simulate(2, 1, gpipe=False, backward=True)]
    [[('f', 1, 0), ('b', 1, 4)], [('f', 1, 1), ('b', 1, 2)]]
    """
    orders = [_order(i, stages, pieces, gpipe, backward) for i in range(stages)]
    ends: dict[tuple[str, int, int], int] = {}
    free = [0] * stages
    rows: list[list[Cell]] = [[] for _ in range(stages)]
    while any(orders):
        for stage, order in enumerate(orders):
            while order:
                kind, number = order[0]
                ready = _ready(ends, kind, stage, number, stages)
                if ready is None:
                    break
                order.pop(0)
                width = FORWARD_UNITS if kind == "f" else BACKWARD_UNITS
                x = max(ready, free[stage])
                ends[kind, stage, number] = free[stage] = x + width
                rows[stage].append(Cell(kind, number, x, width))
    return [tuple(row) for row in rows]


def _order(
    stage: int, stages: int, pieces: int, gpipe: bool, backward: bool
) -> list[tuple[str, int]]:
    """Return what a stage does, in order."""
    forwards = [("f", k) for k in range(1, pieces + 1)]
    backwards = [("b", k) for k in range(1, pieces + 1)]
    if not backward:
        return forwards
    if gpipe:
        return forwards + backwards
    warm = min(stages - stage - 1, pieces)
    steady = [
        op for k in range(pieces - warm) for op in (forwards[warm + k], backwards[k])
    ]
    return forwards[:warm] + steady + backwards[pieces - warm :]


def _ready(
    ends: dict[tuple[str, int, int], int],
    kind: str,
    stage: int,
    number: int,
    stages: int,
) -> int | None:
    """Return when the input is there; None: nobody has worked on it yet."""
    if kind == "f":
        return 0 if stage == 0 else ends.get(("f", stage - 1, number))
    if stage == stages - 1:
        return ends.get(("f", stage, number))
    return ends.get(("b", stage + 1, number))

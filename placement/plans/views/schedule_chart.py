"""The schedule of a pipeline as a grid: who computes which microbatch when.

One-forward-one-backward and its interleaved form (Narayanan et al., "Efficient
Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, figure
4; the order of the interleaved one is that of Megatron-LM's other_schedules.py) and
GPipe (Huang et al., NeurIPS 2019, figure 2). Stages are as long as the Plan says that
they compute; sending is not drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from django.utils.translation import gettext

from placement.planner.values.plan import Plan, Shard
from placement.planner.values.strategies import strategy_of

MOST_CELLS = 480
"""With more cells the chart would be unreadable, so fewer microbatches are drawn."""
UNITS = 1000
"""Width of the drawing."""
BACKWARD = {"none": 2.0, "selective": 2.0, "full": 3.0}
"""Length of a backward relative to its forward. Recomputing adds a forward."""


@dataclass(frozen=True)
class MicrobatchCell:
    """One microbatch on one piece of the model: forward or backward."""

    kind: str
    number: int
    piece: int
    """Which of the Gpu's pieces of the model, from 0."""
    x: float
    width: float


@dataclass(frozen=True)
class Schedule:
    """Rows of cells in stage order. The gaps between them are the bubble."""

    rows: tuple[tuple[str, tuple[MicrobatchCell, ...]], ...]
    """(Gpu label, cells)."""
    width: float
    words: str
    pieces: int
    """Pieces of the model per Gpu. More than one: interleaved."""


def schedule_of(plan: Plan) -> Schedule | None:
    """Return the schedule of a Plan with stages. None for others."""
    ranks = _first_of_each_stage(plan)
    microbatches = int(plan.launch.get("microbatches") or 0)
    if len(ranks) < 2 or microbatches < 1 or not _is_staged(plan):
        return None
    pieces = max(1, int(plan.launch.get("virtual_stages") or 1))
    if any(len(shard.pieces) != pieces for shard in ranks):
        return None
    trains = plan.workload.trains
    drawn = _as_many_as_can_be_seen(len(ranks), pieces, microbatches, trains)
    kind = "gpipe" if _kind(plan) == "gpipe" else "1f1b"
    rows = simulate(
        [_forward_lengths(s, trains, plan.workload.checkpointing) for s in ranks],
        drawn,
        kind=kind,
        backward=BACKWARD[plan.workload.checkpointing] if trains else 0.0,
    )
    width = max(cell.x + cell.width for row in rows for cell in row)
    busy = sum(cell.width for row in rows for cell in row)
    bubble = 100 * (1 - busy / (width * len(ranks)))
    words = [gettext("%(count)s stages") % {"count": len(ranks)}]
    if pieces > 1:
        words.append(gettext("%(count)s pieces of the model each") % {"count": pieces})
    told = {"drawn": drawn, "all": microbatches, "percent": f"{bubble:.0f}"}
    if drawn == microbatches:
        words.append(gettext("%(drawn)s microbatches") % told)
        words.append(gettext("%(percent)s %% waiting") % told)
    else:
        words.append(gettext("the first %(drawn)s of %(all)s microbatches") % told)
        words.append(gettext("%(percent)s %% waiting as drawn") % told)
    return Schedule(
        rows=tuple(
            (shard.gpu_label, _scaled(row, UNITS / width))
            for shard, row in zip(ranks, rows, strict=True)
        ),
        width=UNITS,
        words=", ".join(words),
        pieces=pieces,
    )


def _kind(plan: Plan) -> str:
    schedule = plan.launch.get("schedule") or strategy_of(plan.strategy).schedule
    return str(schedule or "")


def _is_staged(plan: Plan) -> bool:
    return bool(_kind(plan))


def _first_of_each_stage(plan: Plan) -> list[Shard]:
    """Return one Gpu per stage, because copies and tensor ranks do the same work."""
    found: dict[int, Shard] = {}
    # Plans of version 1 have no stage numbers. There every rank is a stage.
    numbered = any(shard.stage for shard in plan.shards)
    for place, shard in enumerate(plan.shards):
        found.setdefault(shard.stage if numbered else place, shard)
    return [found[stage] for stage in sorted(found)]


def _as_many_as_can_be_seen(
    stages: int, pieces: int, microbatches: int, trains: bool
) -> int:
    each = stages * pieces * (2 if trains else 1)
    most = max(stages, MOST_CELLS // each)
    if microbatches <= most:
        return microbatches
    # Interleaving works by whole rounds over the stages.
    return most - most % stages if pieces > 1 else most


def _forward_lengths(shard: Shard, trains: bool, checkpointing: str) -> list[float]:
    """Return the length of each piece's forward on a Gpu, in any unit."""
    layers = [last - first for first, last in shard.pieces]
    whole = shard.busy_seconds if shard.busy_seconds > 0 else float(sum(layers))
    parts = 1 + (BACKWARD[checkpointing] if trains else 0)
    return [whole * count / sum(layers) / parts for count in layers]


def _scaled(row: Sequence[MicrobatchCell], factor: float) -> tuple[MicrobatchCell, ...]:
    return tuple(
        replace(cell, x=round(cell.x * factor, 2), width=round(cell.width * factor, 2))
        for cell in row
    )


Op = tuple[str, int, int]
"""(f or b, microbatch from 1, piece of the Gpu from 0)."""


def simulate(
    lengths: Sequence[Sequence[float]],
    microbatches: int,
    *,
    kind: str,
    backward: float,
) -> list[tuple[MicrobatchCell, ...]]:
    """Start each microbatch as soon as its stage and its input are ready.

    Args:
        lengths: per stage, per piece of it: how long a forward is.
        microbatches: how many; a multiple of the stages where they have pieces.
        kind: 1f1b or gpipe.
        backward: how long a backward is beside its forward; 0: inference.

    >>> [[(c.kind, c.number, c.x) for c in row]
    ...  for row in simulate([[1], [1]], 1, kind="1f1b", backward=2)]
    [[('f', 1, 0.0), ('b', 1, 4.0)], [('f', 1, 1.0), ('b', 1, 2.0)]]
    """
    stages, pieces = len(lengths), len(lengths[0])
    orders = [
        order_of(stage, stages, pieces, microbatches, kind, backward > 0)
        for stage in range(stages)
    ]
    ends: dict[tuple[str, int, int], float] = {}
    free = [0.0] * stages
    rows: list[list[MicrobatchCell]] = [[] for _ in range(stages)]
    while any(orders):
        moved = False
        for stage, order in enumerate(orders):
            while order:
                op, number, piece = order[0]
                seat = piece * stages + stage
                ready = _input_ready_at(ends, op, seat, number, stages * pieces)
                if ready is None:
                    break
                order.pop(0)
                moved = True
                width = lengths[stage][piece] * (1 if op == "f" else backward)
                x = max(ready, free[stage])
                ends[op, seat, number] = free[stage] = x + width
                rows[stage].append(MicrobatchCell(op, number, piece, x, width))
        if not moved:
            raise ValueError("the schedule waits for itself")
    return [tuple(row) for row in rows]


def order_of(
    stage: int, stages: int, pieces: int, microbatches: int, kind: str, backward: bool
) -> list[Op]:
    """Return what a stage does, in order."""
    forwards: list[Op] = []
    backwards: list[Op] = []
    for k in range(microbatches * pieces):
        turn, place = divmod(k, stages * pieces)
        piece, seat = divmod(place, stages)
        number = turn * stages + seat + 1 if pieces > 1 else k + 1
        piece = piece if pieces > 1 else 0
        forwards.append(("f", number, piece))
        backwards.append(("b", number, pieces - 1 - piece))
    if not backward:
        return forwards
    if kind == "gpipe":
        return forwards + backwards
    warm = stages - stage - 1
    if pieces > 1:
        warm = 2 * warm + (pieces - 1) * stages
    warm = min(warm, len(forwards))
    steady = [
        op
        for k in range(len(forwards) - warm)
        for op in (forwards[warm + k], backwards[k])
    ]
    return forwards[:warm] + steady + backwards[len(forwards) - warm :]


def _input_ready_at(
    ends: dict[tuple[str, int, int], float], op: str, seat: int, number: int, seats: int
) -> float | None:
    """Return when the input is ready. None: it has not been computed yet."""
    if op == "f":
        return 0.0 if seat == 0 else ends.get(("f", seat - 1, number))
    if seat == seats - 1:
        return ends.get(("f", seat, number))
    return ends.get(("b", seat + 1, number))

"""Memory that torch's pipelines hold beside the running layers, turn by turn.

A turn is the backward of one microbatch through one piece of the model, together with
the forward that the schedule places before it. Beside the layers' saved tensors, torch
2.13 holds the tensors that pass between stages (torch/distributed/pipelining, traced
allocation by allocation):

* A receive buffer for each microbatch, piece and direction, allocated once and never
  freed (stage.py, `_setup_forward_recv_info` and `_create_grad_recv_info`). The first
  layer of a piece saves this storage itself, so a tensor in flight counts once.
* A piece's output from its forward until its backward (`fwd_cache` of
  `forward_one_chunk`). The output of the last piece is the logits.
* Sent tensors, while a reference to their send operation lives (schedules.py). 1F1B
  holds the gradient of the previous microbatch (`bwd_sends`). GPipe holds the gradients
  of all finished microbatches (`bwd_sends_to_wait`). The interleaved schedule holds
  outputs and gradients of all finished microbatches until the step ends (`send_ops`).
  Gloo's operations hold their tensors even after the wait: the last send of 1F1B's
  warm-up, and all outputs of GPipe.

A piece has gradients from its first backward on. With fewer microbatches than stages
torch refuses 1F1B, and GPipe runs instead. Megatron allocates and frees during the
step, and DeepSpeed has buffers for tensors in flight. step_phases.py has a rule for
each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from placement.planner.memory.layer_costs import LayerCost
from placement.planner.memory.rank_states import RankTotals
from placement.planner.model.sharding import Sharding
from placement.planner.values.workload import Workload

__all__ = ["Beside", "Turn", "besides_of", "border_bytes", "runs_by_torch", "turns_of"]


@dataclass(frozen=True, slots=True)
class Turn:
    """Counts at one backward. A tuple has one for each piece of the rank."""

    piece: int
    """The running piece."""
    flights: tuple[int, ...]
    """Number of microbatches whose activations are kept, the running one included."""
    outputs: tuple[int, ...]
    """Number of outputs that are held."""
    sent: tuple[int, ...]
    """Number of gradients of inputs that are held after they were sent."""
    learnt: tuple[bool, ...]
    """Whether it has gradients of earlier microbatches."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Bytes alive beside layers [first, last) of a rank while they run."""

    first: int
    last: int
    activations: float = 0.0
    """Activations of the other microbatches in flight."""
    passing: float = 0.0
    """Tensors that pass between stages, while backward runs."""
    output: float = 0.0
    """Part of `passing`: the running microbatch's output, which its forward has still
    to make.
    """
    incoming: float = 0.0
    """Part of `passing`: the gradient that the last layer's peak already has."""
    standing: float = 0.0
    """Part of `passing` that is never freed."""
    gradients: float | None = None
    """Gradients of earlier microbatches; None: as in rank_states.py."""
    fresh: bool = False
    """These layers have no gradients yet."""

    @property
    def total(self) -> float:
        """Return all of it."""
        return self.activations + self.passing + (self.gradients or 0.0)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes of one piece, per microbatch if they depend on it."""

    first: int
    last: int
    kept: float
    taken: float
    """Bytes that the stage before sends; 0 for the model's first piece."""
    saved: float
    """The part of `taken` in the first layer's kept bytes."""
    given: float
    """Bytes that are sent on; 0 for the model's last piece."""
    logits: float
    gradients: float


def runs_by_torch(sharding: Sharding) -> bool:
    """Return whether it is a stage of torch's pipelines."""
    return sharding.is_staged and sharding.buffers_of == "torch"


def border_bytes(costs: Sequence[LayerCost], before: int, sharding: Sharding) -> float:
    """Return the bytes that one microbatch sends over a cut before a layer.

    The runtime joins the sequence before it sends (agent/runtime/sharded_model.py).
    """
    parts = sharding.tensor_degree if sharding.sequence_parallel else 1
    return float(costs[before - 1].output_bytes * parts)


@lru_cache(maxsize=4096)
def turns_of(
    schedule: str, kept: int, microbatches: int, degree: int, virtual: int, gloo: bool
) -> tuple[Turn, ...]:
    """Return turns of a step that include the one with the most bytes alive.

    Args:
        schedule: 1f1b, gpipe or interleaved.
        kept: microbatches (of one piece each) in flight when the first backward begins.
        degree: ranks of the pipeline.
        virtual: pieces of each.
        gloo: its operations hold sent tensors for longer.
    """
    total = virtual * microbatches
    if schedule == "interleaved":
        rounds = microbatches // max(1, microbatches // degree)
        cycle, last = rounds * virtual, max(0, total - kept)
        near = range(max(0, last - cycle), min(total, last + cycle + 1))
        return tuple(
            _interleaved(number, kept, rounds, virtual, total)
            for number in sorted({0, *near, total - 1})
        )
    gpipe = schedule == "gpipe"
    numbers = {0, 1, kept - 1, microbatches - kept, microbatches - 1}
    made = []
    for number in sorted(n for n in numbers if 0 <= n < microbatches):
        flights = min(kept, microbatches - number)
        outputs = flights
        if gloo and gpipe:
            outputs = microbatches
        elif gloo and number >= kept - 1 >= 1:
            outputs += 1
        sent = number if gpipe else min(number, 1)
        made.append(Turn(0, (flights,), (outputs,), (sent,), (number > 0,)))
    return tuple(made)


def _interleaved(number: int, kept: int, rounds: int, virtual: int, total: int) -> Turn:
    """Return the turn of a number in an interleaved schedule.

    Pieces run in cycles of so many rounds, forward first to last, backward last to
    first (ScheduleInterleaved1F1B._calculate_single_rank_operations).
    """
    done = min(kept + number, total)
    forward = [_of_piece(done, piece, rounds, virtual) for piece in range(virtual)]
    backward = [
        _of_piece(number, virtual - 1 - piece, rounds, virtual)
        for piece in range(virtual)
    ]
    return Turn(
        virtual - 1 - number // rounds % virtual,
        tuple(f - b for f, b in zip(forward, backward, strict=True)),
        tuple(forward),
        tuple(backward),
        tuple(b > 0 for b in backward),
    )


def _of_piece(done: int, place: int, rounds: int, virtual: int) -> int:
    """Return how many of so many operations were of the piece at a place in the
    cycle.
    """
    whole, rest = divmod(done, rounds * virtual)
    return whole * rounds + min(rounds, max(0, rest - place * rounds))


def besides_of(
    stage: Sequence[LayerCost],
    costs: Sequence[LayerCost],
    rank: RankTotals,
    workload: Workload,
    sharding: Sharding,
) -> list[Beside]:
    """Return the fullest turn of each piece, with and without gradients of its own.

    `stage`: the rank's layers; `costs`: the whole model's.
    """
    pieces = _pieces(stage, costs, rank, sharding)
    count = sharding.microbatches
    standing = sum(one.taken for one in pieces)
    if workload.trains:
        standing += sum(one.given for one in pieces)
    standing *= count
    if not workload.trains:
        return [
            Beside(one.first, one.last, passing=standing, standing=standing)
            for one in pieces
        ]
    gpipe = sharding.keeps_every_microbatch
    # torch refuses 1F1B then, and the runtime uses GPipe.
    gpipe = gpipe or (len(pieces) == 1 and count < sharding.pipeline_degree)
    schedule = "gpipe" if gpipe else "1f1b"
    if len(pieces) > 1:
        schedule = "interleaved"
    kept = count if gpipe else min(sharding.in_flight, count * len(pieces))
    turns = turns_of(
        schedule,
        kept,
        count,
        sharding.pipeline_degree,
        len(pieces),
        workload.accelerator == "cpu",
    )
    always = workload.accumulation > 1 or workload.keeps_gradients
    best: dict[object, Beside] = {}
    for turn in turns:
        made = _beside(turn, pieces, standing, always=always)
        key = (turn.piece, made.gradients, made.fresh)
        if key not in best or best[key].total < made.total:
            best[key] = made
    return list(best.values())


def _pieces(
    stage: Sequence[LayerCost],
    costs: Sequence[LayerCost],
    rank: RankTotals,
    sharding: Sharding,
) -> list[_Piece]:
    spans = sharding.chunks or (
        (sharding.first_layer, sharding.last_layer or len(costs)),
    )
    # The copy here of another stage's table that the head uses too.
    foreign = rank.gradients - sum(cost.gradient_bytes for cost in stage)
    whole = not sharding.sequence_parallel
    made = []
    at = 0
    for first, last in spans:
        mine = costs[first:last]
        ends = last == len(costs)
        taken = border_bytes(costs, first, sharding) if first else 0.0
        gradients = float(sum(cost.gradient_bytes for cost in mine))
        gradients += foreign if ends else 0.0
        made.append(
            _Piece(
                first=at,
                last=at + len(mine),
                kept=float(sum(cost.kept_bytes for cost in mine)),
                taken=taken,
                saved=min(taken, float(mine[0].kept_bytes)) if whole else 0.0,
                given=0.0 if ends else border_bytes(costs, last, sharding),
                logits=float(mine[-1].logits_bytes) if ends else 0.0,
                gradients=gradients * rank.gradient_share,
            )
        )
        at += len(mine)
    return made


def _beside(
    turn: Turn, pieces: Sequence[_Piece], standing: float, *, always: bool
) -> Beside:
    """Return one turn in bytes. `always`: gradients of an earlier batch exist."""
    running = pieces[turn.piece]
    activations = -running.kept
    passing = standing
    gradients = 0.0
    for number, one in enumerate(pieces):
        flights = turn.flights[number]
        activations += flights * one.kept
        passing += turn.sent[number] * one.taken - flights * one.saved
        passing += turn.outputs[number] * one.given + flights * one.logits
        if always or turn.learnt[number]:
            gradients += one.gradients
    return Beside(
        first=running.first,
        last=running.last,
        activations=activations,
        passing=passing,
        output=running.given + running.logits,
        incoming=running.given,
        standing=standing,
        gradients=gradients,
        fresh=not (always or turn.learnt[turn.piece]),
    )

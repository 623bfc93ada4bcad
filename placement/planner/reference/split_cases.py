"""Splitting problems as JSON objects, solved exactly.

* contiguous (or no kind): layer_bytes, free_bytes
  -> max_ratio, device_order, bounds, loads
* pipeline_1f1b: layers [{state_bytes, act_bytes_per_microbatch, fwd_ms, bwd_ms}],
  gpus [{free_bytes, speed}], microbatches
  -> iteration_ms, device_order, bounds, stage_ms
* zero_coalesce: state_bytes, shards, fixed_bytes_per_used_gpu, free_bytes
  -> gpus_used, max_ratio, shards_per_gpu
* move_decision: iter_s_now, iter_s_new, iters_left (null: unknown, then regret_s),
  bytes_moved, bytes_per_s, pause_s, margin
  -> gain_s, cost_s, move

A Gpu may stay empty. device_order names the used Gpus in the order of their layers, and
bounds has one more number. A problem without a solution also gets an answer: every
field is null, "feasible" is false and "reason" names the cause.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import Any

from placement.planner.reference.case_fields import (
    SMALLEST,
    CaseFields,
    numbers_of,
    objects_of,
)
from placement.planner.search.bottleneck_partition import split_bytes
from placement.planner.search.chain_split import classes_of
from placement.planner.search.equal_shards import zero_coalesce
from placement.planner.search.move_or_stay import (
    MARGIN_RATIO,
    decide_move,
    move_cost_seconds,
)
from placement.planner.search.pipeline_partition import PipelineProblem, split_pipeline
from placement.planner.values.errors import BadInput

MOST_LAYERS = 100_000
MOST_GPUS = 1024
MOST_STATES = 2**17
"""Of the exact search: 17 Gpus that all differ, or many of few classes."""
Answer = dict[str, Any]


def split(case: object) -> Answer:
    """Return the optimum of one splitting problem.

    Args:
        case: a mapping with the fields of its kind; see the module's docstring. Sizes
            are in bytes, times in the unit of the field's name (``_ms``, ``_s``).

    Raises:
        BadInput: the case is not a mapping or its kind is unknown; or names each bad
            field.
    """
    if not isinstance(case, Mapping):
        raise BadInput({"case": "must be an object"})
    kind = case.get("kind", "contiguous")
    solve = _SOLVERS.get(kind) if isinstance(kind, str) else None
    if solve is None:
        known = ", ".join(_SOLVERS)
        raise BadInput({"kind": f"{str(kind)[:40]!r} is not one of {known}"})
    return solve(CaseFields(case))


def _contiguous(fields: CaseFields) -> Answer:
    layers = fields.whole_numbers("layer_bytes", most=MOST_LAYERS)
    frees = fields.whole_numbers("free_bytes", most=MOST_GPUS)
    fields.check()
    _check_size(frees)
    split = split_bytes(layers, frees)
    if split is None:
        reason = _lack_of_room(layers, frees)
        return _unsolved(reason, "max_ratio", "device_order", "bounds", "loads")
    return {
        "max_ratio": split.bottleneck,
        "device_order": [piece.gpu for piece in split.pieces],
        "bounds": list(split.bounds),
        "loads": {
            str(piece.gpu): sum(layers[piece.first : piece.last])
            for piece in split.pieces
        },
    }


def _lack_of_room(layers: Sequence[int], frees: Sequence[int]) -> str:
    least = split_bytes(layers, frees, over=True)
    if least is None:
        return "no GPU has any room"
    worst = max(least.pieces, key=lambda piece: piece.load)
    missing = sum(layers[worst.first : worst.last]) - frees[worst.gpu]
    return (
        f"the least overloaded split needs {worst.load:.4g} times what is free: GPU "
        f"{worst.gpu} lacks {missing} bytes for layers {worst.first} to "
        f"{worst.last - 1}"
    )


def _pipeline(fields: CaseFields) -> Answer:
    layers = objects_of(fields, "layers", most=MOST_LAYERS)
    gpus = objects_of(fields, "gpus", most=MOST_GPUS)
    pieces = fields.whole_number("microbatches", least=1)
    states = numbers_of(layers, "state_bytes", whole=True)
    kept = numbers_of(layers, "act_bytes_per_microbatch", whole=True)
    forward = numbers_of(layers, "fwd_ms")
    backward = numbers_of(layers, "bwd_ms")
    frees = [int(free) for free in numbers_of(gpus, "free_bytes", whole=True)]
    speeds = numbers_of(gpus, "speed", above_zero=True)
    fields.check()
    _check_size(list(zip(frees, speeds, strict=True)))
    split = split_pipeline(
        PipelineProblem(
            state_bytes=states,
            activation_bytes=kept,
            seconds=[a + b for a, b in zip(forward, backward, strict=True)],
            free_bytes=frees,
            speeds=speeds,
            microbatches=pieces,
        ),
        budget=None,
    )
    if split is None:
        return _unsolved(
            "no number of stages, order and cut fits the free memory",
            *("iteration_ms", "device_order", "bounds", "stage_ms"),
        )
    return {
        "iteration_ms": float(split.iteration_seconds),
        "device_order": [piece.gpu for piece in split.pieces],
        "bounds": [*(piece.first for piece in split.pieces), len(layers)],
        "stage_ms": [float(seconds) for seconds in split.stage_seconds],
    }


def _coalesce(fields: CaseFields) -> Answer:
    state = fields.whole_number("state_bytes")
    shards = fields.whole_number("shards", least=1)
    fixed = fields.whole_number("fixed_bytes_per_used_gpu")
    frees = fields.whole_numbers("free_bytes", most=MOST_GPUS)
    fields.check()
    found = zero_coalesce(
        shards=shards,
        shard_bytes=Fraction(state, shards),
        fixed_bytes=[fixed] * len(frees),
        free_bytes=frees,
    )
    if found is None:
        room = sum(
            max(0, min(shards, (free - fixed) * shards // state))
            for free in frees
            if state
        )
        return _unsolved(
            f"the GPUs have room for {room} of {shards} shards",
            *("gpus_used", "max_ratio", "shards_per_gpu"),
        )
    return {
        "gpus_used": found.gpus_used,
        "max_ratio": found.max_ratio,
        "shards_per_gpu": list(found.shards),
    }


def _move(fields: CaseFields) -> Answer:
    now = fields.number("iter_s_now")
    new = fields.number("iter_s_new")
    left = fields.whole_number("iters_left", or_none=True)
    moved = fields.number("bytes_moved")
    speed = fields.number("bytes_per_s")
    pause = fields.number("pause_s", default=0.0)
    margin = fields.number("margin", default=MARGIN_RATIO)
    regret = fields.number("regret_s", default=0.0)
    if moved and speed < SMALLEST:
        fields.problems["bytes_per_s"] = "must be above 0 where bytes move"
    fields.check()
    cost = move_cost_seconds(
        bytes_moved=moved, bytes_per_second=speed or 1.0, pause_seconds=pause
    )
    made = decide_move(
        step_seconds_now=now,
        step_seconds_new=new,
        steps_left=left,
        cost_seconds=cost,
        regret_seconds=regret,
        margin_ratio=margin,
    )
    return {"gain_s": made.gain_seconds, "cost_s": cost, "move": made.move}


_SOLVERS: Mapping[str, Callable[[CaseFields], Answer]] = {
    "contiguous": _contiguous,
    "pipeline_1f1b": _pipeline,
    "zero_coalesce": _coalesce,
    "move_decision": _move,
}


def _unsolved(reason: str, *names: str) -> Answer:
    return {**dict.fromkeys(names), "feasible": False, "reason": reason}


def _check_size(keys: Sequence[object]) -> None:
    """Refuse a problem that the exact search could not finish."""
    states = prod(len(group) + 1 for group in classes_of(keys))
    if states > MOST_STATES:
        raise BadInput(
            {"gpus": f"{len(set(keys))} kinds of unequal GPUs are too many to search"}
        )

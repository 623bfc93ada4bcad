"""Move or stay: whether moving a running Job to a better Plan is worth its cost.

See docs/design/placement.md#moving.

gain = (seconds a step now - seconds a step then) x steps left; cost = pause + bytes
that change owner / bandwidth. Move iff gain > 1.25 x cost. With an unknown number of
steps left it is the ski rental problem: move once the regret accumulated since a better
Plan existed reaches the cost. That is never worse than twice the best (Karlin, Manasse,
Rudolph, Sleator, "Competitive snoopy caching", Algorithmica 3, 1988).
"""

from dataclasses import dataclass

from telemetry.protocol.sentences import sentence

MARGIN_RATIO = 0.25
"""Least ratio of gain to cost, because predictions are rough."""
HOLD_DOWN_FACTOR = 10.0
"""Number of costs of the last move that must pass before another move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveBenefit:
    """Move or stay, with the numbers behind it."""

    move: bool
    gain_seconds: float
    """Predicted gain; with an unknown number of steps the regret so far."""
    cost_seconds: float
    reason: str


def move_cost_seconds(
    *, bytes_moved: float, bytes_per_second: float, pause_seconds: float
) -> float:
    """Return the cost of a move: stop, save, relaunch, and move state between Gpus.

    >>> move_cost_seconds(bytes_moved=20e9, bytes_per_second=20e9, pause_seconds=30)
    31.0
    """
    return pause_seconds + bytes_moved / bytes_per_second


def decide_move(
    *,
    step_seconds_now: float,
    step_seconds_new: float,
    steps_left: int | None,
    cost_seconds: float,
    regret_seconds: float = 0.0,
    seconds_since_last_move: float | None = None,
    last_move_cost_seconds: float = 0.0,
    margin_ratio: float = MARGIN_RATIO,
    hold_down_factor: float = HOLD_DOWN_FACTOR,
) -> MoveBenefit:
    """Decide whether a Job moves at its next step boundary.

    `steps_left` None: unknown; then `regret_seconds` is the time already lost by
    staying.
    """
    hold = hold_down_factor * last_move_cost_seconds
    known = steps_left is not None
    gain = (
        (step_seconds_now - step_seconds_new) * steps_left
        if steps_left is not None
        else regret_seconds
    )
    needed = cost_seconds * (1 + margin_ratio) if known else cost_seconds
    if step_seconds_new >= step_seconds_now:
        reason, move = sentence("the other plan is not faster"), False
    elif seconds_since_last_move is not None and seconds_since_last_move < hold:
        left = hold - seconds_since_last_move
        reason, move = (
            sentence("moved recently; held for another {left} s", left=f"{left:.0f}"),
            False,
        )
    elif known and gain > needed:
        reason, move = (
            sentence(
                "saves {gain} s and costs {cost} s",
                gain=f"{gain:.0f}",
                cost=f"{cost_seconds:.0f}",
            ),
            True,
        )
    elif not known and gain >= needed:
        reason, move = (
            sentence(
                "staying has lost {gain} s, as much as a move costs", gain=f"{gain:.0f}"
            ),
            True,
        )
    else:
        reason = sentence(
            "saves {gain} s; a move must save more than {needed} s",
            gain=f"{gain:.0f}",
            needed=f"{needed:.0f}",
        )
        move = False
    return MoveBenefit(
        move=move, gain_seconds=gain, cost_seconds=cost_seconds, reason=reason
    )


def restart_cost_seconds(
    *,
    pause_seconds: float,
    steps_done: int | None,
    step_seconds_new: float,
    from_start: bool,
    bytes_moved: float = 0.0,
    bytes_per_second: float = 1.0,
) -> float:
    """Return the cost of stopping a Job and starting it at another place.

    From the start: the finished steps are repeated at the new pace. From its own
    checkpoint: its state is read again.

    >>> restart_cost_seconds(
    ...     pause_seconds=30, steps_done=100, step_seconds_new=0.5, from_start=True
    ... )
    80.0
    """
    if from_start:
        return pause_seconds + (steps_done or 0) * step_seconds_new
    return move_cost_seconds(
        bytes_moved=bytes_moved,
        bytes_per_second=bytes_per_second,
        pause_seconds=pause_seconds,
    )


def regret_after(
    regret_seconds: float,
    *,
    elapsed_seconds: float,
    step_seconds_now: float,
    step_seconds_new: float,
) -> float:
    """Return the seconds lost so far by staying instead of running the better Plan.

    Without a better Plan the regret is reset to 0, because the earlier better Plan is
    no longer available.

    >>> regret_after(
    ...     10, elapsed_seconds=60, step_seconds_now=1.0, step_seconds_new=0.5
    ... )
    40.0
    """
    if step_seconds_new >= step_seconds_now:
        return 0.0
    return regret_seconds + elapsed_seconds * (1 - step_seconds_new / step_seconds_now)

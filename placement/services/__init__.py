"""Every write of the second floor. Keyword-only; ``now`` is aware UTC."""

from placement.services.backfill import ask as ask_for_gaps
from placement.services.backfill import stop_in_gaps
from placement.services.facts import record_fact
from placement.services.following import follow as follow_jobs
from placement.services.jobs import launch, stop
from placement.services.keeping import book_plan, may_see, own_copy, set_link, starts_of
from placement.services.looking import look_again
from placement.services.models import adapted, chosen_spec, parse_model
from placement.services.planning import (
    earliest_start,
    keep_plan,
    make_plans,
    offered,
    soonest_plans,
)
from placement.services.refining import (
    cancel_refinement,
    follow,
    follow_in_turn,
    refine,
)
from placement.services.relocating import allow_moves, decide
from placement.services.serve_moving import tick as move_served
from placement.services.sweeping import launch_array, stop_array
from placement.services.ticking import tick

__all__ = [
    "adapted",
    "allow_moves",
    "ask_for_gaps",
    "book_plan",
    "cancel_refinement",
    "chosen_spec",
    "decide",
    "earliest_start",
    "follow",
    "follow_in_turn",
    "follow_jobs",
    "keep_plan",
    "launch",
    "launch_array",
    "look_again",
    "make_plans",
    "may_see",
    "move_served",
    "offered",
    "own_copy",
    "parse_model",
    "record_fact",
    "refine",
    "set_link",
    "soonest_plans",
    "starts_of",
    "stop",
    "stop_array",
    "stop_in_gaps",
    "tick",
]

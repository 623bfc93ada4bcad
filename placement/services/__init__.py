"""Every write of the second floor. Keyword-only; ``now`` is aware UTC."""

from placement.services.facts import record_fact
from placement.services.jobs import launch, stop
from placement.services.models import chosen_spec, parse_model
from placement.services.planning import keep_plan, make_plans, offered
from placement.services.ticking import tick

__all__ = [
    "chosen_spec",
    "keep_plan",
    "launch",
    "make_plans",
    "offered",
    "parse_model",
    "record_fact",
    "stop",
    "tick",
]

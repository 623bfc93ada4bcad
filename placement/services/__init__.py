"""Every write of the second floor. Keyword-only; ``now`` is aware UTC."""

from placement.services.facts import record_fact
from placement.services.jobs import launch, stop
from placement.services.ticking import tick

__all__ = ["launch", "record_fact", "stop", "tick"]

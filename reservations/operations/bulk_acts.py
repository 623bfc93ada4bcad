"""The operator's acts on many Gpus at once, and the values that each act sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from telemetry.protocol.sentences import sentence


class BulkAct(StrEnum):
    """One act on Gpus, and the verb of its audit rows."""

    POOL = "pool"
    DRAIN = "drain"
    DRAIN_ENDED = "drain-ended"
    OUT = "out-of-service"
    BACK = "back-in-service"


@dataclass(frozen=True, slots=True)
class ActInfo:
    """One bulk act: its label, and the values that it sets."""

    label: str
    meaning: str
    fields: Mapping[str, object] = field(default_factory=dict)


ACTS: dict[BulkAct, ActInfo] = {
    BulkAct.DRAIN: ActInfo(
        sentence("Drain"),
        sentence(
            "No new bookings from now on. Existing bookings and running jobs stay."
        ),
        {"draining": True},
    ),
    BulkAct.DRAIN_ENDED: ActInfo(
        sentence("End the drain"),
        sentence("New bookings are possible again."),
        {"draining": False},
    ),
    BulkAct.OUT: ActInfo(
        sentence("Not bookable"),
        sentence("Out of service from now on. Running jobs continue."),
        {"maintenance": True},
    ),
    BulkAct.BACK: ActInfo(
        sentence("Bookable again"),
        sentence("Back in service. This also approves a new GPU."),
        {"maintenance": False, "draining": False, "new": False},
    ),
    BulkAct.POOL: ActInfo(
        sentence("Move to a pool"),
        sentence(
            "New bookings cost the weight of that pool and follow its rules. "
            "Existing bookings keep their price."
        ),
    ),
}

"""An engine that answers from one look at it, for a preview. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from reservations.engines.engine_port import (
    EngineAnswer,
    EngineAway,
    EngineCapabilities,
    EngineDeclined,
    EngineView,
    HoldInfo,
    ReservationEngine,
)
from reservations.engines.rules import meets, most_held_gpus


@dataclass(frozen=True, slots=True)
class RehearsedEngine:
    """Refuses what the engine would refuse, and changes nothing there.

    It does not see the jobs that are in the way.
    """

    able: EngineCapabilities
    view: EngineView | None
    """What the engine has; None: it does not answer."""
    failure: str = ""
    """Why it does not answer."""
    released: set[str] = field(default_factory=set)
    """Names of the holds that the bookings of the preview do not find any more."""

    def capabilities(self) -> EngineCapabilities:
        """Return what the engine can do."""
        return self.able

    def within(self, seconds: float) -> ReservationEngine:
        """Return this engine, because nobody is asked again."""
        return self

    def reserve(self, hold: HoldInfo, *, now: datetime, lost: bool = False) -> None:
        """Refuse a hold on nodes, or on more GPUs, that the engine does not have left
        beside its other holds."""
        view = self.observe(now=now)
        if hold.gpus_each:
            own = [one for one in view.holds.values() if one.name != hold.name]
            near = [one for one in own if one.name not in self.released]
            held = most_held_gpus(hold, [*view.others, *near])
            if held + hold.gpus_each > hold.of_each:
                why = f"others have {held} GPUs"
                raise EngineDeclined(why, EngineAnswer.SHORT, held)
            return
        for other in view.others:
            if meets(hold, other) and set(hold.nodes) & set(other.nodes):
                why = f"{other.name} has the nodes"
                raise EngineDeclined(why, EngineAnswer.TAKEN)

    def change(self, hold: HoldInfo, *, seen: HoldInfo, now: datetime) -> None:
        """Refuse what `reserve` refuses."""
        self.reserve(hold, now=now)

    def check_rights(self) -> None:
        """Do nothing: what was not seen is not changed."""

    def release(self, name: str) -> None:
        """Refuse the release of a hold in which jobs run."""
        if self.view is None or self.view.running.get(name):
            raise EngineDeclined(name, EngineAnswer.IN_USE)
        self.released.add(name)

    def stop(self, name: str) -> None:
        """Do nothing: jobs go on during a preview."""

    def observe(self, *, now: datetime) -> EngineView:
        """Return what was seen."""
        if self.view is None:
            raise EngineAway(self.failure)
        return self.view

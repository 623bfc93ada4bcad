"""The request and the facts that decide it: the inputs of a decision."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from reservations.rules.booking_rights import Right
from reservations.rules.calendar import Calendar, CalendarGpu
from reservations.rules.closed_time import Barred
from reservations.rules.fairness.early_returns import EarlyReturns
from reservations.rules.fairness.no_shows import Strike
from reservations.rules.fairness.preemption import FairTree
from reservations.rules.fairness.quota import QuotaInfo
from reservations.rules.lifecycle import Kind
from reservations.rules.policy import Policy
from reservations.rules.prices import Tariff, combined_tariff, cost_gpu_seconds
from reservations.rules.window import Window


@dataclass(frozen=True, slots=True)
class Holding:
    """One live Reservation of the requester (any Membership)."""

    reservation_pk: int
    window: Window
    gpu_pks: frozenset[int]
    kind: Kind
    shared: bool = False
    """Another person's, shared with the requester: it counts for the limit of GPUs
    at once, and for no other limit."""


@dataclass(frozen=True, slots=True)
class Request:
    """These Gpus over this Window, requested at ``now``."""

    gpus: tuple[CalendarGpu, ...]
    window: Window
    now: datetime
    earliest: datetime | None = None
    """When "now" comes true: once who stays on has had notice. None: at ``now``."""
    token: int | None = None
    """Number of the Token that is spent on it: no horizon limits it."""

    @property
    def rate(self) -> Tariff:
        """Weighted Gpus: the cost of one second, by the hour of the week."""
        return combined_tariff(gpu.tariff for gpu in self.gpus)

    @property
    def rates(self) -> dict[int, Tariff]:
        """The same by Pool; 0 stands for all of them together."""
        found = {0: self.rate}
        for gpu in self.gpus:
            if gpu.pool_pk:
                found[gpu.pool_pk] = found.get(gpu.pool_pk, Tariff()) + gpu.tariff
        return found

    @property
    def cost_gpu_seconds(self) -> int:
        """Weighted GPU-seconds of the whole Window."""
        return cost_gpu_seconds(self.window, rate=self.rate)

    @property
    def peak_gpu_seconds(self) -> int:
        """What of the cost the peak hours add."""
        return self.cost_gpu_seconds - self.rate.flat * self.window.seconds


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the decision looks at: facts as they are under the locks."""

    policy: Policy
    calendar: Calendar
    own: tuple[Holding, ...] = ()
    quotas: tuple[QuotaInfo, ...] = ()
    """The Membership's, those on the path to the root that have one, then Pools'."""
    barred: Barred = field(default_factory=dict)
    """Pools that the requester may not book."""
    membership_pk: int = 0
    freed_gpu_seconds: int = 0
    """Committed now and not with the request: what a change gives up."""
    tree: FairTree | None = None
    """None: nobody's flex is in the way, or none may be taken."""
    strike: Strike | None = None
    """A shorter horizon of the requester, after no-shows."""
    returns: EarlyReturns | None = None
    """What the requester gave back and used, where it could shorten the horizon."""
    right: Right | None = None
    """A right to book that ends: a guest's, a course's. None: it has no end."""
    brief: bool = False
    """A refusal by quota need not say what would still fit."""
    quotas_asked: dict[object, object] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """What ``check_quotas`` found, by Window and rates; never copied."""

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
    """Whether another person shares it with the requester. It counts for the limit of
    GPUs at once, and for no other limit.
    """


@dataclass(frozen=True, slots=True)
class Request:
    """These Gpus over this Window, requested at ``now``."""

    gpus: tuple[CalendarGpu, ...]
    window: Window
    now: datetime
    earliest: datetime | None = None
    """The real start of "now", after the notice of an overstay. None: ``now``."""
    voucher: int | None = None
    """Number of the Voucher that is spent on it. Then no horizon limits it."""
    flex_only: bool = False
    """Whether it is flex also where the quota would allow firm. It begins at once."""

    @property
    def rate(self) -> Tariff:
        """Return the weighted Gpus: the cost of one second, by the hour of the week."""
        return combined_tariff(gpu.tariff for gpu in self.gpus)

    @property
    def rates(self) -> dict[int, Tariff]:
        """Return the weighted Gpus by Pool. 0 is for all of them together."""
        found = {0: self.rate}
        for gpu in self.gpus:
            if gpu.pool_pk:
                found[gpu.pool_pk] = found.get(gpu.pool_pk, Tariff()) + gpu.tariff
        return found

    @property
    def cost_gpu_seconds(self) -> int:
        """Return the weighted GPU-seconds of the whole Window."""
        return cost_gpu_seconds(self.window, rate=self.rate)

    @property
    def peak_gpu_seconds(self) -> int:
        """Return the part of the cost from peak hours."""
        return self.cost_gpu_seconds - self.rate.flat * self.window.seconds


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The facts for a decision, as they are under the locks."""

    policy: Policy
    calendar: Calendar
    own: tuple[Holding, ...] = ()
    quotas: tuple[QuotaInfo, ...] = ()
    """The Membership's, those on the path to the root that have one, then Pools'."""
    barred: Barred = field(default_factory=dict)
    """Pools that the requester may not book."""
    membership_pk: int = 0
    freed_gpu_seconds: int = 0
    """Committed now and not with the request: returned by a change."""
    tree: FairTree | None = None
    """None: no flex of others is in the way, or none may be taken."""
    strike: Strike | None = None
    """A shorter horizon of the requester, after no-shows."""
    returns: EarlyReturns | None = None
    """The requester's returns and use, if they could shorten the horizon."""
    right: Right | None = None
    """A right to book that ends, of a guest or in a course. None: it has no end."""
    brief: bool = False
    """Whether a refusal by quota may leave out what would still fit."""
    quotas_asked: dict[object, object] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """Results of ``check_quotas``, by Window and rates. Never copied."""

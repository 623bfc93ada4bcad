"""Draw a realistic calendar around "now". Pure: time and randomness are arguments.

No Gpu is drawn twice at one instant, and every student stays inside the site's rolling
quota, the number of Gpus at once and the number of live reservations, as if each
reservation had been booked through the portal.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpuportal.demo.lab import PURPOSES

WEEK = timedelta(days=7)
HOURS = (1, 2, 2, 3, 4, 4, 6, 8, 12)
WIDTHS = (1, 1, 1, 1, 1, 2, 2, 4)


@dataclass(frozen=True)
class DemoGpu:
    """One Gpu of the demo: its primary key, node and weight."""

    pk: int
    node: str
    index: int
    weight: int


@dataclass(frozen=True)
class DraftBooking:
    """One drawn reservation: student number, Gpus, Window, behaviour."""

    student: int
    gpus: tuple[DemoGpu, ...]
    start: datetime
    end: datetime
    util_pct: float
    purpose: str
    came: bool = True
    """Whether a process of the holder was seen in it before now."""

    @property
    def cost_gpu_seconds(self) -> int:
        """Weighted GPU-seconds of the whole Window."""
        seconds = int((self.end - self.start).total_seconds())
        return seconds * sum(gpu.weight for gpu in self.gpus)


@dataclass
class PastBookings:
    """The bookings drawn so far, with the checks of a calendar."""

    quota_gpu_seconds: int
    gpus_at_once: int
    live_reservations: int
    """How many reservations a student may have ahead or running."""
    now: datetime
    modest: frozenset[int] = frozenset()
    """Students who use at most a third of each limit, so that they can book."""
    drafts: list[DraftBooking] = field(default_factory=list)

    def free(self, gpu: DemoGpu, start: datetime, end: datetime) -> bool:
        """Return whether no drawn reservation of the Gpu overlaps [start, end)."""
        return not any(
            d.start < end and d.end > start and gpu in d.gpus for d in self.drafts
        )

    def allows(self, draft: DraftBooking) -> bool:
        """Return whether the student stays within quota, width and number with it.

        Stricter than the rule, because it sums 7 days on both sides.
        """
        own = [d for d in self.drafts if d.student == draft.student]
        near = [d for d in own if d.start < draft.end + WEEK]
        near = [d for d in near if d.end > draft.start - WEEK]
        cost = sum(d.cost_gpu_seconds for d in near) + draft.cost_gpu_seconds
        overlap = [d for d in own if d.start < draft.end and d.end > draft.start]
        width = sum(len(d.gpus) for d in overlap) + len(draft.gpus)
        live = sum(d.end > self.now for d in [*own, draft])
        quota, most = self.quota_gpu_seconds, self.live_reservations
        if draft.student in self.modest:
            quota, most = quota // 3, most // 3
        return cost <= quota and width <= self.gpus_at_once and live <= most


def draw(
    book: PastBookings,
    gpus: Sequence[DemoGpu],
    *,
    students: int,
    first: datetime,
    last: datetime,
    tries_per_day: int,
    chance: random.Random,
) -> None:
    """Add reservations inside [first, last) to the book.

    Some students book far more than others. The n-th is drawn with weight 1 / n, as on
    real clusters, where a few users make most of the load. Fewer are drawn at night and
    at weekends.
    """
    days = (last - first).total_seconds() / 86_400
    weights = [1 / (1 + (number * 7) % students) for number in range(students)]
    nodes = sorted({gpu.node for gpu in gpus})
    for _ in range(int(days * tries_per_day)):
        hours = chance.choice(HOURS)
        span = (last - first) - timedelta(hours=hours)
        if span <= timedelta(0):
            continue
        start = first + span * chance.random()
        start = start.replace(minute=30 * (start.minute // 30), second=0, microsecond=0)
        end = start + timedelta(hours=hours)
        if start < first or chance.random() > _wanted(start):
            continue
        node = chance.choice(nodes)
        width = chance.choice(WIDTHS)
        free = [g for g in gpus if g.node == node and book.free(g, start, end)]
        if len(free) < width:
            continue
        draft = DraftBooking(
            student=chance.choices(range(students), weights)[0],
            gpus=tuple(free[:width]),
            start=start,
            end=end,
            util_pct=chance.choice((35, 55, 70, 82, 90, 96)),
            purpose=chance.choice(PURPOSES),
        )
        if book.allows(draft):
            book.drafts.append(draft)


def _wanted(start: datetime) -> float:
    """Return the probability of a booking that begins then: less at night and at
    weekends.
    """
    awake = 1.0 if 8 <= start.hour < 19 else 0.3
    return awake * (0.45 if start.weekday() >= 5 else 1.0)

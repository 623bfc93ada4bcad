"""Closed time and pools that are not everybody's: what they refuse, and to whom.

    Refusal
    ├── GpuTaken
    │   └── ClosedThen          maintenance, blackout, a course's teaching slot
    ├── GpuNotBookable
    │   └── PoolNotYours        the pool is kept for other Accounts
    └── QuotaExceeded
        └── PoolQuotaExceeded   a ceiling on this pool's GPUs alone

A closure is a span that nobody can take. A teaching slot is one for everybody but
the members of its course and of what lies below it: for them it is no span at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from typing import ClassVar

from reservations.rules.calendar import BusySpan, CalendarGpu, ClosureInfo
from reservations.rules.errors import GpuNotBookable, GpuTaken, QuotaExceeded
from reservations.rules.figures import time_text
from reservations.rules.window import Window, instant, merged, unix, without
from telemetry.protocol.sentences import Sentence, joined, sentence

NEVER = datetime.max.replace(tzinfo=UTC)

TEACHING = "teaching"
_SHUT: dict[str, Sentence] = {
    "maintenance": sentence(
        "{gpu} is under maintenance from {start} to {end}: {reason}."
    ),
    "blackout": sentence("{gpu} is closed from {start} to {end}: {reason}."),
    TEACHING: sentence("{gpu} is kept for teaching from {start} to {end}: {reason}."),
}
_SHUT_FOR: dict[str, Sentence] = {
    "maintenance": sentence(
        "{gpu} is under maintenance for {account} from {start} to {end}: {reason}."
    ),
    "blackout": sentence(
        "{gpu} is closed for {account} from {start} to {end}: {reason}."
    ),
    TEACHING: sentence(
        "{gpu} is kept for teaching by {account} from {start} to {end}: {reason}."
    ),
}


def closed_spans(
    closures: Iterable[ClosureInfo],
    gpus: Sequence[CalendarGpu],
    held: Mapping[int, Sequence[Window]],
    *,
    asking: Collection[int] = (),
) -> list[BusySpan]:
    """Return the closed spans of these Gpus, without the held time.

    Args:
        held: the held spans by Gpu. Spans of one Gpu must not overlap.
        asking: Accounts on the path of the requesting Membership.
    """
    shut = sorted(
        (c for c in closures if not c.admits(asking)), key=lambda c: (c.start, c.pk)
    )
    spans = []
    for gpu in gpus:
        taken = list(held.get(gpu.pk, ()))
        for one in shut:
            if not one.closes(gpu):
                continue
            for part in without(one.window, taken):
                spans.append(
                    BusySpan(gpu.pk, unix(part.start), unix(part.end), closed=one)
                )
            taken = merged([*taken, one.window])
    return spans


@dataclass(eq=False)
class ClosedThen(GpuTaken):
    """The GPU is closed at that time, for everybody or all but a course."""

    code = "closed-then"
    title = sentence("Closed then")
    kind: str = "maintenance"
    reason: str = ""
    account: str = ""
    """The Account whose teaching slot it is."""

    def text(self, zone: tzinfo = UTC) -> str:
        templates = _SHUT_FOR if self.account else _SHUT
        return sentence(
            templates.get(self.kind, templates["blackout"]),
            gpu=self.gpu,
            account=self.account,
            start=time_text(self.start, zone),
            end=time_text(self.end, zone),
            reason=self.reason.rstrip("."),
        )


@dataclass(eq=False)
class DisplacementPaused(GpuTaken):
    """The requester displaced this person before and gave the time back."""

    code = "displacement-paused"
    title = sentence("Displaced and given back before")
    until: datetime = NEVER

    def text(self, zone: tzinfo = UTC) -> str:
        paused = sentence(
            "You displaced a flex booking of the same person before and gave the time "
            "back, so you cannot displace them again until {until}.",
            until=time_text(self.until, zone),
        )
        return joined([GpuTaken.text(self, zone), paused])


def refusal_of(gpu: CalendarGpu, span: BusySpan) -> GpuTaken:
    """Return why a Gpu cannot be booked within this span."""
    start, end = instant(span.start), instant(span.end)
    if span.paused_until is not None:
        return DisplacementPaused(
            gpu=gpu.label,
            start=start,
            end=end,
            user=span.user,
            until=span.paused_until,
        )
    if (closed := span.closed) is None:
        return GpuTaken(gpu=gpu.label, start=start, end=end, user=span.user)
    return ClosedThen(
        gpu=gpu.label,
        # The whole closure, because the held time inside it cannot be booked either.
        start=closed.start,
        end=closed.end,
        kind=closed.kind,
        reason=closed.reason,
        account=closed.account,
    )


@dataclass(eq=False)
class PoolNotYours(GpuNotBookable):
    """The GPU's pool may be booked by other accounts only."""

    code = "pool-not-yours"
    title = sentence("Not your pool")
    pool: str = ""
    accounts: tuple[str, ...] = ()
    """The accounts that may book it."""

    def text(self, zone: tzinfo = UTC) -> str:
        if not self.accounts:
            return sentence(
                "{gpu} cannot be booked: the pool {pool} is reserved for other groups.",
                gpu=self.gpu,
                pool=self.pool,
            )
        return sentence(
            "{gpu} cannot be booked: the pool {pool} is reserved for {accounts}.",
            gpu=self.gpu,
            pool=self.pool,
            accounts=joined(self.accounts, by=sentence(" and ")),
        )


Barred = Mapping[int, tuple[str, ...]]
"""Pools that the requester may not book, with the names of the groups that may."""


def check_pools(gpus: Iterable[CalendarGpu], barred: Barred) -> None:
    """Refuse Gpus of a pool that is not open to the requesting Membership.

    Raises:
        PoolNotYours: with the first Gpu, and the groups that may book it.
    """
    for gpu in gpus:
        if (accounts := barred.get(gpu.pool_pk)) is not None:
            raise PoolNotYours(
                gpu=gpu.label,
                why=sentence("its pool is kept for others"),
                pool=gpu.gpu_class,
                accounts=accounts,
            )


def open_gpus(gpus: Iterable[CalendarGpu], barred: Barred) -> list[CalendarGpu]:
    """Return these Gpus. Those that the Membership may not book are out of service."""
    return [
        replace(gpu, bookable=False, out=sentence("kept for other groups"))
        if gpu.pool_pk in barred
        else gpu
        for gpu in gpus
    ]


@dataclass(eq=False)
class PoolQuotaExceeded(QuotaExceeded):
    """The account would hold more on one pool's GPUs than its quota in some 7 days."""

    code = "pool-quota-exceeded"
    title = sentence("Quota of the pool")
    on_any_gpus: ClassVar[bool] = False
    pool: str = ""
    own: bool = True

    def _template(self) -> str:
        if self.own:
            return super()._template()
        return sentence(
            "Firm is not possible: from {start} to {end} the firm bookings of "
            "{account} would cost {hours}. Its quota is {quota}. {fits}"
        )

    def text(self, zone: tzinfo = UTC) -> str:
        pool = sentence("This quota counts only {pool} GPUs.", pool=self.pool)
        return joined([super().text(zone), pool])

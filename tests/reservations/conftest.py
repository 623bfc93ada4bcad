"""A small lab at a known instant: Monday 2 March 2026, 09:00 UTC."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from reservations.booking import service as booking
from reservations.models import (
    Account,
    LedgerEntry,
    Membership,
    Reservation,
    SitePolicy,
    User,
)
from telemetry.models import Gpu, SampleMinute
from tests.factories import at, make_account, make_gpus, make_node

HOUR = 3600
NOW = at(9)
WEIGHT = 10


@dataclass
class Lab:
    """Objects on which the tests of this app act."""

    policy: SitePolicy
    gpus: list[Gpu]
    root: Account

    def book(
        self,
        user: User,
        gpus: list[Gpu],
        start: datetime,
        hours: float,
        *,
        now: datetime = NOW,
        membership: Membership | None = None,
    ) -> Reservation:
        """Book as the pages do."""
        return booking.book(
            user=user,
            membership=membership,
            gpu_ids=[gpu.pk for gpu in gpus],
            start=start,
            end=start + timedelta(hours=hours),
            now=now,
        )

    def set(self, **fields: object) -> None:
        """Change the site's policy."""
        for name, value in fields.items():
            setattr(self.policy, name, value)
        self.policy.save()


@pytest.fixture
def lab(db) -> Lab:
    """Four Gpus of weight 10 on one node, two groups under one root."""
    root = make_account("institute")
    for name in ("vision", "nlp"):
        make_account(name, parent=root)
    return Lab(SitePolicy.current(), make_gpus(4, make_node("node-a")), root)


def balance(reservation: Reservation) -> tuple[int, int]:
    """Return (HOLD + RELEASE, CHARGE) in weighted GPU-seconds."""
    rows = LedgerEntry.objects.filter(reservation=reservation)
    held = sum(r.gpu_seconds for r in rows if r.kind != LedgerEntry.Kind.CHARGE)
    charged = sum(r.gpu_seconds for r in rows if r.kind == LedgerEntry.Kind.CHARGE)
    return held, charged


def make_minutes(
    gpu: Gpu,
    start: datetime,
    minutes: int,
    *,
    n: int = 60,
    process_n: int = 0,
    util_pct: float = 0.0,
) -> None:
    """Write minutes as ingest would have seen them."""
    SampleMinute.objects.bulk_create(
        SampleMinute(
            gpu=gpu,
            minute_at=start + timedelta(minutes=number),
            n=n,
            util_n=n,
            util_sum_pct=util_pct * n,
            memory_n=n,
            memory_sum_bytes=0,
            power_n=0,
            power_sum_watts=0,
            process_n=process_n,
        )
        for number in range(minutes)
    )


@pytest.fixture
def gpus(db) -> list[Gpu]:
    """Three Gpus, and the groups of the people everyone knows."""
    root = make_account("institute")
    for name in ("vision", "nlp"):
        make_account(name, parent=root)
    return make_gpus(3)


@pytest.fixture
def hour() -> datetime:
    """The next full hour but one."""
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    return now + timedelta(hours=2)


__all__ = ["HOUR", "NOW", "WEIGHT", "Lab", "at", "balance", "make_minutes"]

"""Ticks that die, run at once, or come late by hours give the end of one undisturbed
run.

A death is an exception that nothing catches, at any transaction of the tick: before its
commit, when all of it is lost, or just after. A second tick may run between any two
transactions of the first. A booking must have begun during its time
(``test_nobody_pays_for_a_window_the_portal_slept_through`` tests the other case).
"""

import random
from collections import Counter
from contextlib import contextmanager
from datetime import datetime

import pytest
from django.db import connection, transaction

from reservations import tick as tick_service
from reservations.booking.overstay import set_overstay
from reservations.booking.release import cancel
from reservations.booking.service import book
from reservations.models import (
    Allocation,
    AuditEntry,
    LateReturn,
    LedgerEntry,
    Notice,
    Reservation,
    Voucher,
)
from reservations.presence.check_in import check_in
from tests.reservations.conftest import NOW, at, make_minutes
from tests.reservations.worlds import on_each, world

INSTANTS = [
    at(hour, minute)
    for hour in range(9, 20)
    for minute in ((0, 15, 16, 30) if hour in (10, 14) else (0, 30))
]


class Died(BaseException):
    """The worker has died. Nothing catches this."""


class Fate:
    """The events at the ends of the tick's transactions."""

    def __init__(self, seed: int | None) -> None:
        self.chance = random.Random(seed)
        self.calm = seed is None
        self.met: Counter[str] = Counter()
        self.inside = False

    def draw(self, now: datetime) -> str:
        """Return "go", or what happens at this end of a transaction."""
        if self.calm or self.inside:
            return "go"
        found = self.chance.choice(("go", "lost", "died", "second"))
        self.met[found] += 1
        return found

    def tick(self, now: datetime) -> None:
        """Tick until one tick comes through; each death ends one."""
        for _ in range(200):
            try:
                with ends(self, now):
                    tick_service.tick(now)
                return
            except Died:
                continue
        raise AssertionError("no tick ever came through")


@contextmanager
def ends(fate: Fate, now: datetime):
    """Apply an event at the end of each outermost transaction."""
    base = len(connection.atomic_blocks)
    leave = transaction.Atomic.__exit__

    def end(self, kind, value, trace):
        outermost = len(connection.atomic_blocks) == base + 1
        if not outermost or kind is not None:
            return leave(self, kind, value, trace)
        drawn = fate.draw(now)
        if drawn == "lost":
            died = Died()
            leave(self, Died, died, None)
            raise died
        leave(self, kind, value, trace)
        if drawn == "died":
            raise Died
        if drawn == "second":
            fate.inside = True
            try:
                tick_service.tick(now)
            finally:
                fate.inside = False
        return None

    transaction.Atomic.__exit__ = end
    try:
        yield
    finally:
        transaction.Atomic.__exit__ = leave


def day(lab, alice, bob, carol) -> list[tuple[datetime, datetime]]:
    """Book a day of everything; return the Windows that a tick has to begin."""
    stays = lab.book(alice, lab.gpus[:1], NOW, 2)
    check_in(reservation_id=stays.pk, now=NOW)
    set_overstay(reservation_id=stays.pk, user=alice, now=NOW)
    nobody = lab.book(bob, lab.gpus[1:2], at(10), 2)
    make_minutes(lab.gpus[1], at(10), 20)
    comes = lab.book(carol, lab.gpus[2:3], at(11), 2)
    make_minutes(lab.gpus[2], at(11), 9, process_n=60, util_pct=90)
    claims = lab.book(carol, lab.gpus[:1], at(13), 3)
    make_minutes(lab.gpus[0], at(13), 9, process_n=60, util_pct=90)
    returned = lab.book(alice, lab.gpus[3:], at(14), 4)
    cancel(reservation_id=returned.pk, user=alice, now=at(9, 1))
    takes = book(
        user=bob,
        membership=None,
        gpu_ids=[lab.gpus[3].pk],
        start=at(15),
        end=at(16),
        now=at(9, 2),
        overstay=True,
    )
    make_minutes(lab.gpus[3], at(15), 9, process_n=60, util_pct=90)
    # Long enough that bob's no-show hours are taken in part.
    after = lab.book(alice, lab.gpus[2:3], at(14), 2)
    make_minutes(lab.gpus[2], at(14), 30)
    booked = (nobody, comes, claims, takes, after)
    return [(row.start, row.booked_end) for row in booked]


def outcome() -> dict[str, object]:
    """Return the final state, by order and not by number."""
    order = {pk: n for n, pk in enumerate(_pks(Reservation))}
    rows = Reservation.objects.order_by("pk")
    fields = ("start", "end", "booked_end", "kind", "state", "cost_gpu_seconds")
    return {
        "rows": list(rows.values_list(*fields, "no_show", "ended_at", "overstay")),
        "held": list(
            Allocation.objects.order_by("reservation_id", "gpu_id").values_list(
                "gpu_id", "start", "end", "live"
            )
        ),
        "ledger": Counter(
            (order[pk], member, kind, amount, when if kind == "charge" else None)
            for pk, member, kind, amount, when in LedgerEntry.objects.values_list(
                "reservation_id", "membership_id", "kind", "gpu_seconds", "at"
            )
        ),
        "late": Counter(
            (order[pk], *rest)
            for pk, *rest in LateReturn.objects.values_list(
                "reservation_id", "gpu_id", "start", "end", "permille", "charged_at"
            )
        ),
        "tokens": Voucher.objects.count(),
        "told": Counter(
            Notice.objects.exclude(kind="ending_soon").values_list("kind", "user_id")
        ),
        "acts": Counter(AuditEntry.objects.values_list("verb", flat=True)),
    }


def _pks(model) -> list[int]:
    return list(model.objects.order_by("pk").values_list("pk", flat=True))


def run(people, fate: Fate, *, late: bool = False) -> dict[str, object]:
    """Run one day in a world of its own, which is gone afterwards."""
    with world():
        windows = day(*people)
        instants = [*INSTANTS, at(23, day=3)]
        if late:
            needed = {
                fate.chance.choice([i for i in INSTANTS if start <= i < end])
                for start, end in windows
            }
            # Two may need the same hour; the rest of the day nobody ticks.
            instants = sorted({*needed, instants[-1]})
        for now in instants:
            fate.tick(now)
        return outcome()


@pytest.fixture
def people(lab, alice, bob, carol):
    return lab, alice, bob, carol


def test_the_day_ends_the_same_however_ticks_die_collide_or_come_late(people) -> None:
    calm = run(people, Fate(None))
    states = Counter(row[4] for row in calm["rows"])
    assert states == {"ended": 4, "released": 2, "cancelled": 1}, states
    assert any(row[6] for row in calm["rows"]), "somebody did not come"
    assert any(kind == "charge" for _, _, kind, _, _ in calm["ledger"])
    assert calm["late"], "somebody gave back late"
    met: Counter[str] = Counter()
    seeds = on_each(sqlite=4, postgresql=1)
    for seed in range(seeds):
        fate = Fate(seed)
        assert run(people, fate) == calm, f"seed {seed}"
        met += fate.met
    assert min(met[word] for word in ("lost", "died", "second")) > 2 * seeds, met
    for seed in range(10, 10 + seeds):
        assert run(people, Fate(seed), late=True) == calm, f"late, seed {seed}"
    quiet = Fate(None)
    quiet.chance = random.Random(99)
    assert run(people, quiet, late=True) == calm

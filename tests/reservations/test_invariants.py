"""Random sequences of acts; after each one the books and the calendar are right.

POLICY.md section 4: I1, I2, I3, I5, I10. Seeds are fixed, so a failure is repeatable.
"""

import random
from collections import defaultdict
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from django.db.models import Sum

from reservations import services
from reservations.domain.errors import BookingError
from reservations.domain.lifecycle import Kind, State
from reservations.domain.quota import PERMILLE, Load
from reservations.domain.window import WEEK_SECONDS, Window, instant, unix
from reservations.models import (
    Account,
    Allocation,
    LateReturn,
    LedgerEntry,
    Reservation,
)
from reservations.snapshots import quota_infos, site_policy
from reservations.snapshots.facts import account_path
from tests.reservations.conftest import HOUR, NOW, WEIGHT

ACTS = ("book", "book", "book", "cancel", "undo", "change", "release", "tick", "wait")

BY_SOMEBODY = frozenset(ACTS) - {"tick", "wait"}


class Story:
    """One random history of a small lab."""

    def __init__(self, lab, users, chance: random.Random) -> None:
        self.lab, self.users, self.chance = lab, users, chance
        self.now = NOW
        self.done: dict[str, int] = defaultdict(int)

    def act(self) -> None:
        """Do one thing that somebody might do; a refusal is fine.

        I2: whatever somebody does, what others hold firm or frozen stays.
        """
        name = self.chance.choice(ACTS)
        self.actor = None
        before = self.safe()
        try:
            getattr(self, name)()
            self.done[name] += 1
        except BookingError:
            self.done["refused"] += 1
        if name in BY_SOMEBODY and self.actor is not None:
            after = self.safe()
            for pk, stood in before.items():
                assert stood[0] == self.actor.pk or after.get(pk) == stood, name

    def safe(self) -> dict[int, tuple]:
        """Return what nobody else may touch: firm, frozen and running."""
        freeze = self.now + timedelta(seconds=site_policy().freeze_seconds)
        return {
            row.pk: (row.user_id, row.start, row.end, row.state)
            for row in Reservation.objects.live()
            if row.kind == Kind.FIRM or row.start <= freeze
        }

    def by(self, user):
        """Note who acts."""
        self.actor = user
        return user

    def some(self, *states: State) -> Reservation:
        rows = list(Reservation.objects.filter(state__in=states).order_by("pk"))
        if not rows:
            self.book()
            rows = list(Reservation.objects.order_by("pk"))
        return self.chance.choice(rows)

    def span(self) -> tuple[datetime, datetime]:
        ahead = self.chance.choice((0, 1, 2, 5, 20, 30, 100, 200))
        hours = self.chance.choice((1, 2, 3, 8))
        if not ahead:
            end = instant(unix(self.now) // HOUR * HOUR + HOUR * hours)
            return self.now, end
        start = instant((unix(self.now) // HOUR + ahead) * HOUR)
        return start, start + timedelta(hours=hours)

    def gpus(self) -> list[int]:
        return [
            g.pk
            for g in self.chance.sample(self.lab.gpus, self.chance.choice((1, 1, 2)))
        ]

    def book(self) -> None:
        start, end = self.span()
        services.book(
            user=self.by(self.chance.choice(self.users)),
            membership=None, gpu_ids=self.gpus(),
            start=start, end=end, now=self.now,
        )  # fmt: skip

    def cancel(self) -> None:
        row = self.some(State.CONFIRMED)
        services.cancel(reservation_id=row.pk, user=self.by(row.user), now=self.now)

    def undo(self) -> None:
        row = self.some(State.CANCELLED)
        services.undo_cancel(
            reservation_id=row.pk, user=self.by(row.user), now=self.now
        )

    def change(self) -> None:
        row = self.some(State.CONFIRMED, State.ACTIVE)
        start, end = self.span()
        fields: dict = {"end": end}
        if row.state == State.CONFIRMED:
            fields |= {"start": start, "gpu_ids": self.gpus()}
        services.change(
            reservation_id=row.pk, user=self.by(row.user), version=row.version,
            now=self.now, **fields,
        )  # fmt: skip

    def release(self) -> None:
        row = self.some(State.ACTIVE)
        services.release(reservation_id=row.pk, user=self.by(row.user), now=self.now)

    def tick(self) -> None:
        services.tick(self.now)

    def wait(self) -> None:
        minutes = self.chance.choice((1, 7, 30, 60, 240))
        self.now += timedelta(minutes=minutes, seconds=self.chance.randrange(60))
        services.tick(self.now)


def check_calendar() -> None:
    """I1: no Gpu twice at any instant."""
    rows = list(
        Allocation.objects.filter(reservation__state__in=State.holding()).order_by(
            "gpu_id", "start", "end"
        )
    )
    for one, after in pairwise(rows):
        if one.gpu_id == after.gpu_id:
            assert one.end <= after.start, (one, after)


def check_ledger() -> None:
    """HOLD + RELEASE is the cost of what is live, and nothing afterwards."""
    held = dict(
        LedgerEntry.objects.exclude(kind=LedgerEntry.Kind.CHARGE)
        .order_by()
        .values_list("reservation")
        .annotate(Sum("gpu_seconds"))
    )
    for row in Reservation.objects.all():
        expected = row.cost_gpu_seconds if row.state in State.live() else 0
        assert held.get(row.pk, 0) == expected, row


def check_quotas(users) -> None:
    """I3: in every window of 7 days, wherever it begins."""
    policy = site_policy()
    for user in users:
        member = user.memberships.get()
        start, end = NOW - timedelta(days=10), NOW + timedelta(days=30)
        for info in quota_infos(
            member, account_path(member), start, end, policy=policy
        ):
            load = Load(info.spends)
            edges = {s.start for s in info.spends} | {s.end for s in info.spends}
            for edge in edges | {edge - WEEK_SECONDS for edge in edges}:
                spent = load.between(edge, edge + WEEK_SECONDS)
                assert spent <= info.quota_gpu_seconds * PERMILLE, info.account


def check_notices() -> None:
    """I5: whoever was displaced has the whole hold back, and was told once."""
    gone = Reservation.objects.filter(state=State.DISPLACED)
    for row in gone:
        notice = row.notices.get()
        assert notice.user_id == row.user_id
        assert notice.told_at < row.start - timedelta(hours=12)
        assert notice.detail["refund_gpu_seconds"] == row.cost_gpu_seconds
        assert row.kind == Kind.FLEX


def check_sums() -> None:
    """I10: charges of all and of the site = time held x weight + late charges."""
    charges = LedgerEntry.objects.filter(kind=LedgerEntry.Kind.CHARGE)
    charged = charges.aggregate(n=Sum("gpu_seconds"))["n"] or 0
    over = Allocation.objects.filter(
        reservation__state__in=[State.ENDED, State.RELEASED, State.REFUNDED]
    )
    held = sum(WEIGHT * (unix(a.end) - unix(a.start)) for a in over)
    late: dict[int, int] = defaultdict(int)
    for part in LateReturn.objects.exclude(charged_at=None):
        seconds = Window(part.start, part.end).seconds
        late[part.reservation_id] += seconds * part.weight * part.permille
    assert charged == held + sum(cost // PERMILLE for cost in late.values())


@pytest.mark.parametrize("seed", range(4))
def test_books_calendar_and_quotas_hold_whatever_people_do(
    lab, alice, bob, carol, seed
) -> None:
    lab.set(quota_gpu_seconds=WEIGHT * 20 * HOUR)
    Account.objects.filter(name="vision").update(quota_gpu_seconds=WEIGHT * 30 * HOUR)
    users = [alice, bob, carol]
    story = Story(lab, users, random.Random(seed))
    for _ in range(60):
        story.act()
        check_calendar()
        check_ledger()
        check_quotas(users)
        check_notices()
    assert story.done["book"] > 3 and story.done["refused"] > 3, story.done
    services.tick(story.now + timedelta(days=60))
    services.tick(story.now + timedelta(days=60, seconds=1))
    assert not Reservation.objects.live().exists()
    assert not LateReturn.objects.filter(charged_at=None).exists()
    check_ledger()
    check_sums()


def test_flex_counts_in_no_quota_and_is_paid_all_the_same(lab, alice) -> None:
    lab.set(quota_gpu_seconds=0)
    made = lab.book(alice, lab.gpus[:1], NOW, 2)
    assert made.kind == Kind.FLEX
    services.tick(NOW + timedelta(hours=3))
    charges = LedgerEntry.objects.filter(kind=LedgerEntry.Kind.CHARGE)
    assert charges.get().gpu_seconds == WEIGHT * 2 * HOUR

"""Jobs in gaps never prevent a booking: random stories, with and without them.

Before each booking the same is tried in a world without the held gaps: a booking that
is granted there is granted here too, and begins no later than a gap's notice. The books
stay correct (docs/design/fair-booking.md#i1, #i3, #i10 and #i14), and nobody holds more
Gpus than one person may.
"""

import random
from collections import Counter
from datetime import datetime, timedelta

from django.db.models import F

from reservations import tick
from reservations.booking import gap_booking, overstay
from reservations.booking import service as booking
from reservations.models import Allocation, Reservation
from reservations.rules.errors import InThePast
from reservations.rules.lifecycle import State
from reservations.rules.overstay_terms import OverBeforeFree
from reservations.rules.window import instant, unix
from reservations.store.booking_facts import site_policy
from reservations.store.free_gaps import whole_holdings
from reservations.waitlist import scheduler
from reservations.waitlist import service as waiting
from telemetry.models import Gpu
from telemetry.protocol.coded_error import CodedError
from tests.factories import make_membership, make_user
from tests.reservations.booking.test_invariants import (
    Story,
    check_calendar,
    check_decided_again,
    check_ledger,
    check_quotas,
    check_sums,
)
from tests.reservations.conftest import HOUR, NOW, WEIGHT
from tests.reservations.worlds import on_each, world

ACTS = (
    "book",
    "book",
    "claim",
    "claim",
    "claim",
    "gap",
    "gap",
    "leave",
    "hold_on",
    "want",
    "change",
    "cancel",
    "undo",
    "release",
    "wait",
    "wait",
)


def held_gaps():
    return Reservation.objects.filter(state=State.ACTIVE, booked_end__lte=F("start"))


def without_gaps() -> None:
    """Take every gap that is held off the calendar."""
    Allocation.objects.filter(reservation__in=held_gaps()).update(live=False)


class GapStory(Story):
    """A history in which Jobs come and go in the gaps."""

    def span(self) -> tuple[datetime, datetime]:
        ahead = self.chance.choice((0, 0, 0, 1, 2, 5, 22))
        if self.chance.random() < 0.15:
            # Sooner than a Job has left: five minutes to the hour, or one.
            start = instant((unix(self.now) // HOUR + 1) * HOUR)
            self.now = start - timedelta(seconds=self.chance.choice((300, 60, 20)))
            return start, start + timedelta(hours=1)
        end = instant((unix(self.now) // HOUR + ahead) * HOUR)
        hours = timedelta(hours=self.chance.choice((1, 2)))
        return (end, end + hours) if ahead else (self.now, end + hours)

    def book(self) -> None:
        (start, end), gpu_ids = self.span(), self.gpus()
        if held_gaps().exists() and self.chance.random() < 0.7:
            row = held_gaps().order_by("pk").last()
            gpu_ids = [a.gpu_id for a in row.allocations.all()]
        self.compare(gpu_ids, start, end)

    def compare(self, gpu_ids, start: datetime, end: datetime) -> None:
        """Book with the gaps that are held, and in a world without them."""
        user = self.by(self.chance.choice(self.users))
        with world():
            without_gaps()
            alone = self.attempt(user, gpu_ids, start, end)
        before = held_gaps().count()
        made = self.attempt(user, gpu_ids, start, end)
        if not isinstance(alone, Reservation):
            raise alone
        notice = overstay.gap_notice(site_policy())
        if not isinstance(made, Reservation):
            # Only what would be over before a Job has left.
            assert isinstance(made, OverBeforeFree), made
            assert alone.end - alone.start <= notice
            self.works_later(user, gpu_ids, start, made)
            raise made
        assert made.end == alone.end
        assert timedelta() <= made.start - alone.start <= notice
        self.done["beside gaps"] += bool(before)
        self.done["claimed"] += made.start > alone.start

    def works_later(self, user, gpu_ids, start: datetime, said: OverBeforeFree) -> None:
        """The refusal names an end that is granted, and a slot that is not refused."""
        for asked in (
            (gpu_ids, start, said.works_from),
            (slot := said.next_slot) and (slot.gpu_ids, slot.start, slot.end),
        ):
            with world():
                made = self.attempt(user, *asked) if asked else None
                assert not isinstance(made, InThePast), made
        self.done["too short"] += 1

    def claim(self) -> None:
        """Book what a Job in a gap is on, from now, for a moment or for hours."""
        if not held_gaps().exists():
            self.gap()
        row = held_gaps().order_by("pk").last()
        end = instant((unix(self.now) // HOUR + self.chance.choice((1, 2))) * HOUR)
        gpu_ids = [a.gpu_id for a in row.allocations.all()]
        begin = self.now + timedelta(seconds=self.chance.choice((0, 0, 0, 20)))
        self.compare(gpu_ids, begin if end - begin > timedelta(0) else self.now, end)

    def attempt(self, user, gpu_ids, start, end) -> Reservation | CodedError:
        """Book as any story does; return what came of it."""
        try:
            return booking.book(
                user=user,
                membership=None,
                gpu_ids=gpu_ids,
                start=start,
                end=end,
                now=self.now,
            )
        except CodedError as refusal:
            return refusal

    def gap(self) -> None:
        user = self.chance.choice(self.users)
        taken = Allocation.objects.filter(
            live=True, start__lte=self.now, end__gt=self.now
        ).values("gpu_id")
        free = Gpu.objects.exclude(pk__in=taken).order_by("pk")[
            : self.chance.choice((1, 1, 2))
        ]
        made = gap_booking.book_gap(
            membership=user.memberships.get(),
            gpu_ids=[gpu.pk for gpu in free] or self.gpus(),
            shortest_seconds=self.chance.choice((60, 60, 1800)),
            purpose="sweep",
            most_seconds=self.chance.choice((None, 3000)),
            now=self.now,
        )
        assert made.booked_end == made.start == self.now.replace(microsecond=0)
        self.done["gaps"] += 1

    def leave(self) -> None:
        row = held_gaps().order_by("pk").first()
        if row is not None:
            gap_booking.return_gap(
                reservation_id=row.pk, now=self.now, reason="the job has ended"
            )

    def hold_on(self) -> None:
        for row in held_gaps():
            end = gap_booking.hold_on(reservation_id=row.pk, now=self.now)
            assert row.end <= end <= row.start + timedelta(days=1)

    def want(self) -> None:
        """Somebody waits, and is placed as if no gap were held."""
        user = self.by(self.chance.choice(self.users))
        earliest = self.now + timedelta(hours=self.chance.choice((0, 0, 3, 24)))
        waiting.ask(
            user=user,
            membership=None,
            count=self.chance.choice((1, 2)),
            duration_seconds=HOUR * self.chance.choice((1, 4)),
            any_notice=True,
            earliest=earliest,
            latest=earliest + timedelta(hours=12),
            now=self.now,
        )
        self.done["placed"] += scheduler.place(self.now, site_policy())["placed"]
        with world():
            without_gaps()
            later = self.now + timedelta(seconds=61)
            # docs/design/fair-booking.md#i13
            assert scheduler.place(later, site_policy())["placed"] == 0

    def act(self, name: str, number: int) -> None:
        super().act(name, number)
        most = site_policy().gpus_at_once
        for user in self.users:
            held = [h for h in whole_holdings(user.pk) if h.window.holds(self.now)]
            assert sum(len(h.gpu_pks) for h in held) <= most, name


def test_no_booking_is_refused_or_late_because_of_jobs_in_gaps(
    lab, alice, bob, carol
) -> None:
    lab.set(quota_gpu_seconds=WEIGHT * 12 * HOUR, gpus_at_once=3, live_reservations=12)
    users = [alice, bob, carol, make_user("dave")]
    make_membership(users[-1], "nlp")
    done: Counter[str] = Counter()

    for seed in range(on_each(sqlite=3, postgresql=2)):
        chance = random.Random(seed)
        with world():
            story = GapStory(lab, users, NOW)
            for act in chance.choices(ACTS, k=40):
                story.act(act, chance.randrange(2**32))
                check_calendar()
                check_ledger()
            check_quotas(users)
            check_decided_again(story)
            for days in (0, 1, 60):
                tick.tick(story.now + timedelta(days=days))
            assert not Reservation.objects.live().exists()
            check_ledger()
            check_sums()
            done.update(story.done)

    assert (
        min(done[word] for word in ("gaps", "beside gaps", "claimed")) > 2
        and done["too short"]
    ), done
    assert done["placed"] and done["hold_on"] and done["refused"], done

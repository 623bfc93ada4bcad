"""Random sequences with gifts, swaps, parts and series: the books still add up."""

from collections import Counter

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from reservations.booking import partial_release
from reservations.models import Account, Occurrence, Offer
from reservations.rules.lifecycle import State
from reservations.series import series_end
from reservations.series import service as series
from reservations.series.recurrence import Repeat, rule_from
from reservations.sharing import co_use, offers
from reservations.tick import tick
from tests.factories import make_membership, make_user
from tests.reservations.booking.test_invariants import (
    CLOCKS_CHANGE,
    Story,
    check_calendar,
    check_decided_again,
    check_ledger,
    check_quotas,
    check_sums,
    timedelta,
)
from tests.reservations.conftest import HOUR, NOW, WEIGHT
from tests.reservations.worlds import on_each, world

ACTS = (
    "book",
    "book",
    "book",
    "cancel",
    "change",
    "release",
    "wait",
    "give",
    "give",
    "swap",
    "swap",
    "answer",
    "answer",
    "answer",
    "part",
    "part",
    "repeat",
    "leave",
    "share",
)


class Trade(Story):
    """A history in which people hand on what they hold."""

    def give(self) -> None:
        row = self.some(State.CONFIRMED, State.ACTIVE)
        other = self.chance.choice(self.users).username
        offers.offer(reservation_id=row.pk, user=row.user, to=other, now=self.now)

    def swap(self) -> None:
        row, wanted = self.some(State.CONFIRMED), self.some(State.CONFIRMED)
        offers.offer(
            reservation_id=row.pk, user=row.user, wanted_id=wanted.pk, now=self.now
        )

    def answer(self) -> None:
        """An exchange touches what it exchanges, and nothing of others.

        See docs/design/fair-booking.md#i2.
        """
        one = Offer.objects.filter(state="open").order_by("pk").last()
        if one is None:
            return
        before = self.safe()
        act = self.chance.choice((offers.accept, offers.accept, offers.decline))
        done = act(offer_id=one.pk, user=one.taker.user, now=self.now)
        self.done[done.state] += 1
        self.done["swapped"] += done.given_back_id is not None
        after = self.safe()
        changed = {pk for pk in before if after.get(pk) != before[pk]}
        assert changed <= {one.reservation_id, one.wanted_id}

    def part(self) -> None:
        row = self.some(State.CONFIRMED, State.ACTIVE)
        held = list(row.allocations.values_list("gpu_id", flat=True))
        what: dict = {"gpu_ids": held[:1], "last_seconds": 0}
        if self.chance.random() < 0.5:
            what = {"gpu_ids": [], "last_seconds": HOUR}
        told = partial_release.price(
            reservation_id=row.pk, user=row.user, now=self.now, **what
        )
        partial_release.give_back_part(
            reservation_id=row.pk,
            user=row.user,
            version=row.version,
            now=self.now,
            **what,
        )
        # docs/design/fair-booking.md#i9
        assert told.late_gpu_seconds <= told.returned_gpu_seconds

    def repeat(self) -> None:
        start, end = self.span()
        rule = rule_from(
            repeat=self.chance.choice(list(Repeat)),
            start=start,
            end=end,
            zone="Europe/Berlin",
            until=None,
            times=self.chance.choice((2, 5, 20)),
        )
        wanted = series.checked_wish(
            user=self.chance.choice(self.users),
            membership=None,
            gpu_ids=self.gpus(),
            rule=rule,
            now=self.now,
        )
        shown = [one.state for one in series.rehearse(wanted, now=self.now)]
        _, looked = series.create(wanted, skip_refused=True, now=self.now)
        assert shown[: len(looked)] == [one.state for one in looked]

    def leave(self) -> None:
        one = Occurrence.objects.order_by("pk").last()
        if one is not None:
            series_end.cancel_from(
                series_id=one.series_id, user=one.series.user, day=one.day, now=self.now
            )

    def share(self) -> None:
        row = self.some(State.CONFIRMED, State.ACTIVE)
        other = self.chance.choice(self.users).username
        co_use.share(reservation_id=row.pk, user=row.user, username=other, now=self.now)


def test_whatever_is_handed_on_cut_and_repeated_the_books_and_quotas_hold(
    lab, alice, bob, carol
) -> None:
    lab.set(quota_gpu_seconds=WEIGHT * 20 * HOUR)
    Account.objects.filter(name="vision").update(quota_gpu_seconds=WEIGHT * 30 * HOUR)
    users = [alice, bob, carol, make_user("dora")]
    make_membership(users[3], "nlp")
    done: Counter[str] = Counter()

    @given(
        st.sampled_from((NOW, CLOCKS_CHANGE)),
        st.lists(
            st.tuples(st.sampled_from(ACTS), st.integers(0, 2**32)),
            min_size=50,
            max_size=60,
        ),
    )
    @settings(
        max_examples=on_each(sqlite=6, postgresql=3),
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
    )
    def stories(start, acts) -> None:
        with world():
            story = Trade(lab, users, start)
            for number, act in enumerate(acts):
                story.act(*act)
                check_calendar()
                check_ledger()
                if number % 6 == 0:
                    check_quotas(users)
            check_quotas(users)
            check_decided_again(story)
            for days in (1, 60, 61):
                tick(story.now + timedelta(days=days))
            check_ledger()
            check_sums()
            done.update(story.done)

    stories()
    few = {act: done[act] for act in ("accepted", "swapped", "part", "repeat")}
    assert min(few.values()) >= 1, done

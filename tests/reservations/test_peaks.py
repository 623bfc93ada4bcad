"""Pools that cost more at some hours: exact in quotas, charges, returns and reports.

Monday 2 March 2026, 09:00 UTC is 10:00 on the clock of Berlin.
"""

import json
from collections import defaultdict
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db.models import Sum
from django.urls import reverse
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from reservations import tick
from reservations.booking import partial_release
from reservations.booking.booking_change import change
from reservations.booking.overstay import set_overstay
from reservations.booking.release import cancel, release
from reservations.booking.service import book, preview
from reservations.management.commands.check_books import findings
from reservations.models import (
    Account,
    Allocation,
    AuditEntry,
    LateReturn,
    LedgerEntry,
    PoolRule,
    Reservation,
)
from reservations.operations import closures, gpu_replacement, pools
from reservations.operations.peak_hours import read_hours
from reservations.operations.pools import PoolEdit
from reservations.presence.check_in import check_in
from reservations.reports.month_bookings import month_bookings
from reservations.reports.rules import month_sums
from reservations.rules.errors import QuotaExceeded
from reservations.rules.fairness.quota import PERMILLE
from reservations.rules.lifecycle import Kind, State
from reservations.rules.prices import PeakHours, read_peak
from reservations.rules.review import FieldsInvalid
from reservations.rules.window import WEEK_SECONDS, instant, unix
from reservations.store.usage import pending_late_gpu_seconds
from telemetry.models import Pool
from tests.factories import (
    at,
    make_gpus,
    make_membership,
    make_node,
    make_pool,
    make_user,
)
from tests.reservations.booking.test_invariants import (
    ACTS,
    CLOCKS_CHANGE,
    Story,
    check_calendar,
    check_decided_again,
    check_ledger,
    check_notices,
)
from tests.reservations.conftest import HOUR, NOW, WEIGHT, balance
from tests.reservations.worlds import world

BERLIN = "Europe/Berlin"


def set_peak(pool: Pool, factor: int, hours: str, zone: str = BERLIN) -> None:
    peak = PeakHours(factor, read_hours(hours), zone).to_text() if factor > 1 else ""
    PoolRule.objects.update_or_create(pool=pool, defaults={"peak": peak})


def plain(one: Allocation, start: int, end: int) -> int:
    """The price of an Allocation's time, a quarter of an hour after the other."""
    start = max(start, unix(one.start))
    end = min(end, unix(one.end))
    peak, cost = read_peak(one.peak), 0
    for at_ in range(start // 900 * 900, end, 900):
        seconds = min(end, at_ + 900) - max(start, at_)
        factor = 1
        if peak is not None:
            local = instant(at_).astimezone(ZoneInfo(peak.zone))
            if peak.mask >> (local.weekday() * 24 + local.hour) & 1:
                factor = peak.factor
        cost += seconds * factor * one.weight
    return cost


# --- one story ------------------------------------------------------------------------


@pytest.mark.once
def test_peak_hours_count_at_their_factor_in_cost_and_quota(lab, alice) -> None:
    lab.set(quota_gpu_seconds=WEIGHT * 12 * HOUR)
    pool = lab.gpus[0].pool
    set_peak(pool, 3, "Mon-Fri 12-14")
    # 12:00 to 14:00 in Berlin is 11:00 to 13:00 UTC.
    seen = preview(
        user=alice,
        membership=None,
        gpu_ids=[lab.gpus[0].pk],
        start=at(10, day=4),
        end=at(13, day=4),
        now=NOW,
    )
    assert seen.cost_gpu_seconds == 7 * HOUR * WEIGHT
    assert seen.peak_gpu_seconds == 4 * HOUR * WEIGHT
    assert seen.quota_left_gpu_seconds == 5 * HOUR * WEIGHT
    row = lab.book(alice, lab.gpus[:1], at(10, day=4), 3)
    assert (row.kind, row.cost_gpu_seconds) == (Kind.FIRM, 7 * HOUR * WEIGHT)
    # Two hours of the peak would be six: five are left; one of them would fit.
    far = at(11, day=9)
    with pytest.raises(QuotaExceeded) as refused:
        lab.book(alice, lab.gpus[1:2], far, 2)
    assert refused.value.numbers["asked_gpu_seconds"] == 6 * HOUR * WEIGHT
    assert refused.value.numbers["would_hold_gpu_seconds"] == 13 * HOUR * WEIGHT
    assert refused.value.numbers["fits_gpu_seconds"] == 3 * HOUR * WEIGHT


def test_what_was_booked_keeps_its_price_when_it_is_changed_returned_and_charged(
    lab, alice, bob
) -> None:
    lab.set(quota_gpu_seconds=WEIGHT * 12 * HOUR)
    pool = lab.gpus[0].pool
    set_peak(pool, 3, "Mon-Fri 12-14")
    row = lab.book(alice, lab.gpus[:1], at(10, day=4), 3)
    # A new price does not apply to it. The time added on new Gpus has it.
    set_peak(pool, 5, "0-24")
    Pool.objects.filter(pk=pool.pk).update(weight=2 * WEIGHT)
    row = change(
        reservation_id=row.pk,
        user=alice,
        start=at(11, day=3),
        end=at(14, day=3),
        version=row.version,
        now=NOW,
    )
    assert row.cost_gpu_seconds == 7 * HOUR * WEIGHT
    assert row.decision["quotas"][0]["held_gpu_seconds"] == 7 * HOUR * WEIGHT
    new = lab.book(bob, lab.gpus[1:2], at(22, day=10), 1)
    assert new.cost_gpu_seconds == 10 * HOUR * WEIGHT
    cancel(reservation_id=new.pk, user=bob, now=NOW)
    set_peak(pool, 3, "Mon-Fri 12-14")
    Pool.objects.filter(pk=pool.pk).update(weight=WEIGHT)

    # Shorter by the last hour, two hours before: one hour outside the peak, half price.
    soon = at(9, day=3)
    told = partial_release.price(
        reservation_id=row.pk, user=alice, last_seconds=2 * HOUR, now=soon
    )
    assert told.returned_gpu_seconds == 4 * HOUR * WEIGHT
    assert told.late_gpu_seconds == 2 * HOUR * WEIGHT
    row = partial_release.give_back_part(
        reservation_id=row.pk,
        user=alice,
        last_seconds=2 * HOUR,
        version=row.version,
        now=soon,
    )
    assert row.cost_gpu_seconds == 3 * HOUR * WEIGHT
    parts = row.late_returns.order_by("start").values_list("start", "weight")
    assert [(start.hour, weight) for start, weight in parts] == [
        (12, 3 * WEIGHT),
        (13, WEIGHT),
    ]
    assert pending_late_gpu_seconds()[row.membership_id] == 2 * HOUR * WEIGHT
    # Bob takes the peak hour of it: that one costs Alice nothing.
    other = lab.book(bob, lab.gpus[:1], at(12, day=3), 1, now=soon)
    tick.tick(at(11, day=3))
    check_in(reservation_id=row.pk, now=at(11, day=3), by="click")
    half = at(11, day=3) + timedelta(minutes=30)
    release(reservation_id=row.pk, user=alice, now=half)
    assert balance(row) == (0, 3 * HOUR * WEIGHT // 2)
    tick.tick(at(12, day=3))
    check_in(reservation_id=other.pk, now=at(12, day=3), by="click")
    tick.tick(at(15, day=3))
    # Half an hour used at 3, half an hour of it late at 3/2, the hour outside at 1/2.
    late = (3 * HOUR // 4 + HOUR // 2) * WEIGHT
    assert balance(row) == (0, 3 * HOUR * WEIGHT // 2 + late)
    assert balance(other) == (0, 3 * HOUR * WEIGHT)
    first, last = unix(at(0, day=1)), unix(at(0, day=30))
    sums = month_sums(month_bookings(first, last), start=first, end=last, now=last)
    charges = LedgerEntry.objects.filter(kind=LedgerEntry.Kind.CHARGE)
    charged = charges.aggregate(n=Sum("gpu_seconds"))["n"]
    assert sum(s.cost_gpu_seconds for s in sums.values()) == charged
    assert list(findings()) == []


@pytest.mark.once
def test_cut_in_two_carried_over_closed_and_stayed_on_at_the_booked_price(
    lab, alice, bob, omar
) -> None:
    lab.set(quota_gpu_seconds=WEIGHT * 99 * HOUR)
    set_peak(lab.gpus[0].pool, 2, "Mon-Fri 12-14")
    desk = {"actor": omar, "now": NOW, "reason": "as agreed"}
    # What runs is cut along its Gpus; one of them has no peak hours.
    plainer = make_gpus(1, make_node("node-p"), pool=make_pool("A30", weight=4))[0]
    row = lab.book(alice, [lab.gpus[0], plainer], NOW, 4)
    assert row.cost_gpu_seconds == (6 * WEIGHT + 4 * 4) * HOUR
    check_in(reservation_id=row.pk, now=NOW)
    row.refresh_from_db()
    left = partial_release.give_back_part(
        reservation_id=row.pk,
        user=alice,
        gpu_ids=[lab.gpus[0].pk],
        version=row.version,
        now=at(11),
    )
    assert left.cost_gpu_seconds == 4 * 4 * HOUR
    part = Reservation.objects.exclude(pk=row.pk).get()
    assert balance(part) == (0, 2 * WEIGHT * HOUR)
    tick.tick(at(13))
    assert balance(row) == (0, 4 * 4 * HOUR)
    assert balance(part) == (0, (2 + 2) * WEIGHT * HOUR)

    # A lighter Gpu takes the place of one: the peak hours stay, the weight is less.
    light = make_gpus(1, make_node("node-l"), pool=make_pool("L4", weight=3))[0]
    ahead = lab.book(bob, lab.gpus[1:2], at(10, day=4), 2)
    assert ahead.cost_gpu_seconds == 3 * WEIGHT * HOUR
    pair = {"old_id": lab.gpus[1].pk, "new_id": light.pk}
    seen = gpu_replacement.preview(**pair, now=NOW).mark
    gpu_replacement.replace(**pair, mark=seen, **desk)
    ahead.refresh_from_db()
    assert ahead.cost_gpu_seconds == 3 * 3 * HOUR

    # Every Gpu closes from noon: the peak hour after it comes back whole.
    closed = lab.book(alice, lab.gpus[2:3], at(11, day=5), 2)
    assert closed.cost_gpu_seconds == 4 * WEIGHT * HOUR
    draft = closures.ClosureDraft(
        kind="maintenance",
        scope="site",
        start=at(12, day=5),
        end=at(20, day=5),
        reason="power",
    )
    found = closures.preview(draft=draft, now=NOW)
    assert [r.back_gpu_seconds for r in found.reliefs] == [2 * WEIGHT * HOUR]
    closures.save(draft=draft, actor=omar, now=NOW, mark=found.mark)
    closed.refresh_from_db()
    assert closed.cost_gpu_seconds == 2 * WEIGHT * HOUR

    # A user who stays past the end pays the peak hours that come then.
    lab.set(overstay_seconds=2 * HOUR)
    stays = lab.book(bob, lab.gpus[3:4], at(10, day=3), 1, now=at(9, day=3))
    set_overstay(reservation_id=stays.pk, user=bob, now=at(9, day=3))
    tick.tick(at(10, day=3))
    check_in(reservation_id=stays.pk, now=at(10, day=3), by="click")
    tick.tick(at(10, day=3) + timedelta(minutes=1))
    tick.tick(at(13, day=3))
    assert balance(stays) == (0, 5 * WEIGHT * HOUR)
    assert list(findings()) == []


# --- the operator's page --------------------------------------------------------------


def test_an_operator_sets_peak_hours_sees_them_and_is_told_what_is_wrong(
    client, lab, alice, omar
) -> None:
    pool = lab.gpus[0].pool
    page = reverse("manage-pool", args=[pool.pk])
    client.force_login(omar)
    form = {"weight": WEIGHT, "reason": "busy days"}
    for factor, hours, said in (
        ("2", "", "Enter the hours"),
        ("1", "Mon 9-18", "Choose 2 or more"),
        ("", "Mon 9-18", "Choose 2 or more"),
        ("3", "Monday 9-18", "is not understood"),
        ("11", "Mon 9-18", "Enter a whole number from 1 to 10"),
        ("2.5", "Mon 9-18", "Enter a whole number"),
    ):
        wrong = form | {"peak_factor": factor, "peak_hours": hours}
        answer = client.post(page, wrong)
        assert answer.status_code == 422
        assert said in answer.content.decode()
    assert not PoolRule.objects.exclude(peak="").exists()
    good = form | {"peak_factor": "2", "peak_hours": "mon-fri 9-18, 20-22; sat 10-14"}
    mark = client.post(page, good).context["review"].mark
    save = good | {"save": 1, "mark": mark}
    text = client.post(page, save, follow=True).content.decode()
    assert "count 2 times" in text
    assert "9-18, 20-22" in text
    assert "peak hours: <span" in text
    assert 'value="Mon-Fri 9-18, 20-22; Sat 10-14"' in text
    entry = AuditEntry.objects.get(verb="pool.changed")
    assert entry.detail["before"]["peak"] == "none"
    assert entry.detail["after"]["peak"].startswith("2 times in Mon-Fri 9-18")
    assert not pools.change_pool(
        pool_id=pool.pk,
        actor=omar,
        now=NOW,
        reason="again",
        edit=PoolEdit(WEIGHT, peak_factor=2, peak_hours=good["peak_hours"]),
    )
    with pytest.raises(FieldsInvalid):
        pools.change_pool(
            pool_id=pool.pk,
            actor=omar,
            now=NOW,
            reason="x",
            edit=PoolEdit(WEIGHT, peak_factor=0),
        )
    mark = client.post(page, form).context["review"].mark
    client.post(page, form | {"save": 1, "mark": mark})
    assert PoolRule.objects.get(pool=pool).peak == ""
    assert "count 2 times" not in client.get(page).content.decode()


# --- random actions, at prices that change
# ---------------------------------------------


class Priced(Story):
    """The same random history, with an operator who changes the prices."""

    def set_prices(self) -> None:
        """Another weight and other peak hours, from now on."""
        pool = Pool.objects.get(pk=self.lab.gpus[0].pool_id)
        pool.weight = self.chance.choice((WEIGHT, WEIGHT, 7))
        pool.save(update_fields=["weight"])
        hours = self.chance.choice(("0-24", "Mon-Fri 9-18", "Sun 1-22", "20-3"))
        set_peak(pool, self.chance.choice((1, 2, 3, 3)), hours)

    def return_late(self) -> None:
        """What is booked at a peak comes back an hour or two before it begins."""
        pool = Pool.objects.get(pk=self.lab.gpus[0].pool_id)
        set_peak(pool, 3, "0-24")
        start = instant((unix(self.now) // HOUR + self.chance.choice((2, 3))) * HOUR)
        user = self.by(self.chance.choice(self.users))
        row = book(
            user=user,
            membership=None,
            gpu_ids=self.gpus()[:1],
            start=start,
            end=start + timedelta(hours=1),
            now=self.now,
        )
        cancel(reservation_id=row.pk, user=user, now=self.now)
        set_peak(pool, 1, "")


def check_quotas_plainly(users) -> None:
    """From the Allocations alone, in windows that begin or end where one does.

    See docs/design/fair-booking.md#i3.
    """
    most = {u.memberships.get(): WEIGHT * 9 * HOUR for u in users}
    held: dict[int, list[Allocation]] = defaultdict(list)
    rows = Allocation.objects.filter(
        reservation__kind=Kind.FIRM, reservation__state__in=State.holding()
    ).select_related("reservation")
    for one in rows:
        one.end = min(one.end, one.reservation.booked_end)
        held[one.reservation.membership_id].append(one)
    lates = defaultdict(list)
    for part in LateReturn.objects.filter(firm=True):
        span = unix(part.start), unix(part.end), part.weight * part.permille
        lates[part.membership_id].append(span)
    for member, quota in most.items():
        own, late = held[member.pk], lates[member.pk]
        edges = {unix(a.start) for a in own} | {unix(a.end) for a in own}
        edges |= {edge for low, high, _ in late for edge in (low, high)}
        for low in edges | {edge - WEEK_SECONDS for edge in edges}:
            high = low + WEEK_SECONDS
            spent = PERMILLE * sum(plain(a, low, high) for a in own)
            spent += sum(max(0, min(b, high) - max(a, low)) * r for a, b, r in late)
            assert spent <= quota * PERMILLE


def check_sums_plainly() -> None:
    """Charges of all and of the site = the price of held time + late charges.

    See docs/design/fair-booking.md#i10.
    """
    charges = LedgerEntry.objects.filter(kind=LedgerEntry.Kind.CHARGE)
    charged = charges.aggregate(n=Sum("gpu_seconds"))["n"] or 0
    over = Allocation.objects.filter(
        reservation__state__in=[State.ENDED, State.RELEASED, State.REFUNDED]
    )
    held = sum(plain(a, unix(a.start), unix(a.end)) for a in over)
    late: dict[tuple, int] = defaultdict(int)
    for part in LateReturn.objects.exclude(charged_at=None):
        seconds = unix(part.end) - unix(part.start)
        late[part.reservation_id, part.charged_at] += (
            seconds * part.weight * part.permille
        )
    assert charged == held + sum(cost // PERMILLE for cost in late.values())


def test_books_and_quotas_hold_to_the_second_while_prices_change(
    lab, alice, bob, carol
) -> None:
    lab.set(quota_gpu_seconds=WEIGHT * 9 * HOUR)
    Account.objects.filter(name="vision").update(quota_gpu_seconds=WEIGHT * 20 * HOUR)
    users = [alice, bob, carol, make_user("dave"), make_user("erin")]
    for user in users[3:]:
        make_membership(user, "vision")
    done: dict[str, int] = defaultdict(int)

    @given(
        st.sampled_from((CLOCKS_CHANGE, NOW)),
        st.lists(
            st.tuples(
                st.sampled_from((*ACTS, "set_prices", "return_late")),
                st.integers(0, 2**32),
            ),
            min_size=36,
            max_size=36,
        ),
    )
    @settings(
        max_examples=3,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
    )
    def stories(start: datetime, acts: list[tuple[str, int]]) -> None:
        with world():
            story = Priced(lab, users, start)
            story.act("set_prices", 3)
            for number, act in enumerate(acts):
                story.act(*act)
                check_ledger()
                if number % 8 == 0:
                    check_quotas_plainly(users)
                    check_decided_again(story)
            check_quotas_plainly(users)
            check_calendar()
            check_decided_again(story)
            check_notices()
            for days in (0, 60):
                tick.tick(story.now + timedelta(days=days))
            tick.tick(story.now + timedelta(days=61))
            assert not Reservation.objects.live().exists()
            check_ledger()
            check_sums_plainly()
            done["late at a peak"] += sum(
                part.weight not in (7, WEIGHT) for part in LateReturn.objects.all()
            )
            done["peaked"] += Reservation.objects.filter(peaked=True).count()
            done["not"] += Reservation.objects.filter(peaked=False).count()
            stored = json.dumps(list(Reservation.objects.values_list("decision")))
            done["stored"] += stored.count(BERLIN)

    stories()
    assert all(done.values()), dict(done)

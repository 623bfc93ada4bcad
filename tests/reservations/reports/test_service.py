"""Reports: months are added up, whatever was booked, held, given back or refused."""

from datetime import date, timedelta

import pytest
from django.urls import reverse

from reservations import tick
from reservations.booking.release import cancel, release
from reservations.models import (
    Account,
    LedgerEntry,
    MonthUse,
    RefusedDemand,
    RolledMonth,
)
from reservations.presence.check_in import check_in
from reservations.reports import service as reports
from reservations.rules.errors import Refusal
from telemetry.models import UsageSummary
from tests.reservations.conftest import HOUR, NOW, WEIGHT, at

MARCH = date(2026, 3, 1)


def total(name: str, **of: object) -> int:
    return sum(MonthUse.objects.filter(**of).values_list(name, flat=True))


def test_a_month_adds_up_what_was_booked_held_used_and_given_back(lab, alice, carol):
    kept = lab.book(alice, lab.gpus[:2], at(10), 4)
    back = lab.book(alice, lab.gpus[2:3], at(10), 3)
    gone = lab.book(carol, lab.gpus[3:4], at(20), 2)
    cancel(reservation_id=gone.pk, user=carol, now=NOW)
    tick.tick(at(10))
    for row in (kept, back):
        check_in(reservation_id=row.pk, now=at(10), by="click")
    release(reservation_id=back.pk, user=alice, now=at(11))
    tick.tick(at(14))
    UsageSummary.objects.filter(reservation_id=kept.pk, gpu__isnull=False).update(
        n=7200, util_n=7200, util_sum_pct=7200 * 50.0, energy_joules=3.6e6
    )
    later = at(9) + timedelta(days=2)
    tick.tick(later)
    assert reports.roll_months(later) == 1
    assert reports.roll_months(later) == 0
    assert set(MonthUse.objects.values_list("month", flat=True)) == {MARCH}
    mine = {"membership__user": alice}
    assert total("bookings", **mine) == 2
    assert total("gpu_bookings", **mine) == 3
    assert total("booked_gpu_seconds", **mine) == (8 + 3) * HOUR
    assert total("held_gpu_seconds", **mine) == (8 + 1) * HOUR
    assert total("returned_gpu_seconds", **mine) == 2 * HOUR
    assert total("returned_gpu_seconds", membership__user=carol) == 2 * HOUR
    assert total("seen_gpu_seconds", **mine) == 4 * HOUR
    assert total("used_gpu_seconds", **mine) == 2 * HOUR
    assert total("energy_joules") == pytest.approx(2 * 3.6e6)
    charges = LedgerEntry.objects.filter(kind=LedgerEntry.Kind.CHARGE)
    assert total("cost_gpu_seconds") == sum(
        charges.values_list("gpu_seconds", flat=True)
    )
    assert total("cost_gpu_seconds", gpu=lab.gpus[0]) == 4 * HOUR * WEIGHT


def test_refused_bookings_are_counted_by_day_and_rule_but_mistakes_are_not(
    lab, alice, bob
):
    lab.book(alice, lab.gpus[:1], at(12), 2)
    for _ in range(3):
        with pytest.raises(Refusal):
            lab.book(bob, lab.gpus[:1], at(12), 2)
    with pytest.raises(Refusal):
        lab.book(bob, lab.gpus[:1], at(1), 2)
    row = RefusedDemand.objects.get()
    assert (row.rule, row.requests, row.gpu_seconds) == ("gpu-taken", 3, 6 * HOUR)
    assert row.day == NOW.date()


def test_a_slower_worker_writes_no_month_and_old_months_come_to_rest(lab, alice):
    lab.book(alice, lab.gpus[:1], at(12), 2)
    assert reports.roll_month(MARCH, now=at(13))
    note = RolledMonth.objects.get()
    note.rolled_at -= timedelta(hours=1)
    assert not note.final
    assert reports.due_months(at(13)) == []
    assert reports.due_months(at(14)) == [MARCH]
    much_later = NOW + timedelta(days=80)
    assert reports.roll_months(much_later) == 3
    assert RolledMonth.objects.get(month=MARCH).final
    assert MARCH not in reports.due_months(much_later + timedelta(days=1))


def test_the_report_shows_adds_up_narrows_and_tames(
    lab, alice, carol, omar, client, django_assert_max_num_queries
):
    Account.objects.filter(name="vision").update(title="=cmd()")
    lab.book(alice, lab.gpus[:2], at(10), 4)
    lab.book(carol, lab.gpus[2:3], at(10), 2)
    with pytest.raises(Refusal):
        lab.book(carol, lab.gpus[:1], at(10), 2)
    tick.tick(at(10))
    tick.tick(at(14))
    reports.roll_months(at(15))
    client.force_login(omar)
    where = reverse("manage-reports") + "?since=2026-03&until=2026-03"
    for by in ("month", "group", "user", "gpu", "class"):
        with django_assert_max_num_queries(25):
            page = client.get(f"{where}&by={by}&sort=-held")
        assert page.status_code == 200
        assert page.context["report"].total.sums.booked_gpu_seconds == 10 * HOUR
    assert page.context["report"].total.refused_gpu_seconds == 2 * HOUR
    narrowed = client.get(f"{where}&by=user&user={alice.pk}&since=never")
    assert [row.name for row, _ in narrowed.context["rows"]] == [str(alice)]
    assert "since" in narrowed.context["notices"][0]
    sheet = client.get(f"{where}&by=group&format=csv").content.decode()
    assert "'=cmd()" in sheet
    assert "\n=cmd()" not in sheet
    assert sheet.splitlines()[-1].startswith("Together,10.0,")


def test_a_head_sees_the_own_group_and_carol_and_alice_see_no_report(
    lab, alice, bob, carol, client
):
    vision = Account.objects.get(name="vision")
    bob.memberships.update(is_head=True)
    lab.book(alice, lab.gpus[:1], at(10), 2)
    lab.book(carol, lab.gpus[1:2], at(10), 8)
    reports.roll_months(at(9))
    where = reverse("group-report", args=[vision.pk]) + "?since=2026-03&until=2026-03"
    client.force_login(bob)
    nlp = carol.memberships.get().account_id
    page = client.get(f"{where}&by=user")
    assert [row.name for row, _ in page.context["rows"]] == [str(alice)]
    assert client.get(f"{where}&group={nlp}").context["rows"] == []
    assert client.get(reverse("manage-reports")).status_code == 403
    for outsider in (alice, carol):
        client.force_login(outsider)
        assert client.get(where).status_code == 404
        assert client.get(reverse("manage-reports")).status_code == 403

"""Rank, path, quota band; searches; holders; the smaller services."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from reservations import tick
from reservations.booking.release import cancel
from reservations.booking.service import book
from reservations.booking.slot_search import find_slots
from reservations.fairshare.service import standing
from reservations.models import Account, LedgerEntry, Reservation, SitePolicy, Voucher
from reservations.presence.check_in import check_in
from reservations.presence.holders import (
    current_holdings,
    next_holdings,
    recent_holdings,
)
from reservations.rules import errors
from reservations.rules.lifecycle import Kind
from reservations.rules.never_fits import NeverFits
from reservations.store import usage
from reservations.store.booking_facts import site_policy
from reservations.store.usage import usage_by_membership
from tests.factories import make_gpus, make_membership, make_node, make_pool
from tests.reservations.conftest import HOUR, NOW, WEIGHT, at

GIB = 2**30


@pytest.mark.once
def test_who_booked_stands_behind_who_did_not(lab, alice, bob, carol) -> None:
    lab.book(alice, lab.gpus[:1], at(12), 4)
    places = {
        user.username: standing(user=user, now=NOW).memberships[0].place
        for user in (alice, bob, carol)
    }
    assert places == {"carol": 1, "bob": 2, "alice": 3}
    own = standing(user=alice, now=NOW).memberships[0]
    assert own.of == 3
    assert [level.kind for level in own.path] == ["account", "account", "member"]
    member = own.path[-1]
    assert member.usage_gpu_hours == WEIGHT * 4
    assert (member.norm_shares, member.effective_usage) == (0.5, 1.0)
    assert member.level_fs == 0.5
    idle = standing(user=carol, now=NOW).memberships[0]
    assert idle.path[-1].level_fs is None


@pytest.mark.once
def test_past_charges_count_less_with_time_and_commitments_do_not(lab, alice) -> None:
    lab.book(alice, lab.gpus[:1], NOW, 4)
    tick.tick(at(13))
    later = at(13) + timedelta(seconds=lab.policy.half_life_seconds)
    own = standing(user=alice, now=later).memberships[0]
    assert own.path[-1].usage_gpu_hours == pytest.approx(WEIGHT * 2)
    lab.book(alice, lab.gpus[:1], later + timedelta(days=2), 1, now=later)
    own = standing(user=alice, now=later).memberships[0]
    assert own.path[-1].usage_gpu_hours == pytest.approx(WEIGHT * 3)


def test_the_quota_band_says_when_there_is_room(lab, alice) -> None:
    lab.set(quota_gpu_seconds=WEIGHT * 10 * HOUR)
    lab.book(alice, lab.gpus[:1], at(9, day=4), 8)
    own = standing(user=alice, now=NOW).memberships[0].quotas[0]
    assert (own.quota_gpu_seconds, own.own) == (WEIGHT * 10 * HOUR, True)
    assert own.held_gpu_seconds == WEIGHT * 8 * HOUR
    assert {p.left_gpu_seconds for p in own.band if p.at < at(9, day=4)} == {
        WEIGHT * 2 * HOUR
    }
    after = [p for p in own.band if p.at > at(17, day=11)]
    assert {p.left_gpu_seconds for p in after} == {WEIGHT * 10 * HOUR}
    assert len(own.band) == 112


def test_the_groups_quota_is_shown_beside_ones_own(lab, alice) -> None:
    Account.objects.filter(name="vision").update(quota_gpu_seconds=WEIGHT * HOUR)
    quotas = standing(user=alice, now=NOW).memberships[0].quotas
    assert [(quota.account, quota.own) for quota in quotas] == [
        ("Vision", True),
        ("Vision", False),
    ]


@pytest.mark.once
def test_a_standing_costs_the_same_queries_for_any_history(
    lab, alice, django_assert_max_num_queries
) -> None:
    for hour in range(10, 20, 2):
        lab.book(alice, lab.gpus[:1], at(hour), 1)
    with django_assert_max_num_queries(15):
        standing(user=alice, now=NOW)


def test_who_belongs_nowhere_has_an_empty_standing(lab, omar) -> None:
    assert standing(user=omar, now=NOW).memberships == ()


def test_a_large_ledger_is_summed_once_a_minute(lab, alice, monkeypatch) -> None:
    monkeypatch.setattr(usage, "SMALL_LEDGER_ROWS", 0)
    policy = SitePolicy.current().to_policy()
    lab.book(alice, lab.gpus[:1], NOW, 1)
    tick.tick(at(10))
    own = alice.memberships.get().pk
    first = usage_by_membership(at(10), policy)[own]
    LedgerEntry.objects.create(
        membership_id=own,
        reservation=Reservation.objects.get(),
        kind="charge",
        gpu_seconds=999,
        at=at(10),
        reason="later",
    )
    assert usage_by_membership(at(10, 0), policy)[own] == first
    assert usage_by_membership(at(10, 2), policy)[own] > first
    usage._kept.clear()


def find(user, *, count=1, hours=1.0, **fields):
    return find_slots(
        **{
            "user": user,
            "membership": None,
            "count": count,
            "min_memory_bytes": 0,
            "duration_seconds": int(hours * HOUR),
            "now": NOW,
        }
        | fields
    )


@pytest.mark.once
def test_sums_of_a_large_ledger_go_on_from_those_before(lab, alice, bob, monkeypatch):
    monkeypatch.setattr(usage, "UNSETTLED_ROWS", 1)
    policy = site_policy()
    for day, user in enumerate((alice, bob, alice, bob), start=2):
        row = lab.book(user, lab.gpus[:1], at(10, day=day), 2, now=at(9, day=day))
        tick.tick(at(10, day=day))
        check_in(reservation_id=row.pk, now=at(10, day=day), by="click")
        tick.tick(at(12, day=day))
        later = at(13, day=day)
        with monkeypatch.context() as large:
            large.setattr(usage, "SMALL_LEDGER_ROWS", 0)
            kept = usage.usage_by_membership(later, policy)
        assert kept == usage.usage_by_membership(later, policy)
    assert len(kept) == 2
    usage._kept.clear()


@pytest.mark.once
def test_every_slot_that_is_found_can_be_booked(lab, alice, bob) -> None:
    lab.book(bob, lab.gpus[:3], at(10), 5)
    slots = find(alice, count=2, hours=3, now=at(9, 10))
    assert slots[0].start == at(15)
    for slot in slots:
        made = book(
            user=alice,
            membership=None,
            gpu_ids=list(slot.gpu_ids),
            start=slot.start,
            end=slot.end,
            now=at(9, 10),
        )
        assert made.kind == slot.kind
        cancel(reservation_id=made.pk, user=alice, now=at(9, 10))


def test_slots_skip_what_the_quota_forbids(lab, alice) -> None:
    lab.set(quota_gpu_seconds=WEIGHT * 4 * HOUR, flex_horizon_seconds=0)
    lab.book(alice, lab.gpus[:1], at(12), 4)
    slot = find(alice, hours=2, limit=1, earliest=at(10))[0]
    # The first two hours leave the seven days that began on Monday at noon.
    assert (slot.start, slot.kind) == (at(12, day=9), Kind.FIRM)


@pytest.mark.once
def test_slots_respect_memory_class_and_times(lab, alice) -> None:
    small = make_gpus(
        2,
        make_node("node-b"),
        pool=make_pool("small", weight=3),
        memory_total_bytes=24 * GIB,
    )
    assert set(find(alice)[0].gpu_ids) <= {gpu.pk for gpu in small}
    large = find(alice, min_memory_bytes=40 * GIB)[0]
    assert set(large.gpu_ids) <= {gpu.pk for gpu in lab.gpus}
    with pytest.raises(NeverFits, match="The largest has 24 GiB"):
        find(alice, gpu_class="small", min_memory_bytes=40 * GIB)
    timed = find(alice, earliest=at(20, 30), latest=at(23), hours=2)
    assert (timed[0].start, timed[0].end) == (at(21), at(23))
    assert find(alice, earliest=at(20, 30), latest=at(21), hours=2) == []
    with pytest.raises(NeverFits):
        find(alice, count=3, gpu_class="small")


def test_a_search_that_can_never_fit_is_refused(lab, alice, omar) -> None:
    with pytest.raises(errors.TooLong):
        find(alice, hours=25)
    with pytest.raises(errors.TooManyGpus):
        find(alice, count=5)
    with pytest.raises(errors.MembershipNeeded):
        find(omar)


@pytest.mark.once
def test_holders_are_known_at_every_instant(lab, alice, bob) -> None:
    alice.unix_user = "alice1"
    alice.save()
    lab.book(alice, lab.gpus[:1], NOW, 2)
    lab.book(bob, lab.gpus[:1], at(11), 1)
    lab.book(bob, lab.gpus[:1], at(14), 1)
    pk = lab.gpus[0].pk
    held = current_holdings(at(10))[pk]
    assert (held.username, held.unix_user, held.account) == (
        "alice",
        "alice1",
        "vision",
    )
    assert next_holdings(at(10))[pk].start == at(11)
    # By the Window: no tick has run yet.
    assert current_holdings(at(11))[pk].username == "bob"
    assert recent_holdings(at(11, 1), within_seconds=300)[pk].username == ("alice")
    assert current_holdings(at(13)) == {}


def test_who_has_two_memberships_stands_twice(lab, alice) -> None:
    make_membership(alice, "nlp")
    found = standing(user=alice, now=NOW).memberships
    assert [own.membership.account.name for own in found] == ["nlp", "vision"]


def test_the_page_says_what_would_raise_one_and_what_one_is_owed(
    lab, alice, bob, carol
) -> None:
    lab.set(half_life_seconds=2 * 24 * HOUR)
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    big = lab.book(alice, lab.gpus[:1], now + timedelta(hours=30), 8, now=now)
    lab.book(bob, lab.gpus[1:2], now + timedelta(days=8), 4, now=now)
    client = Client()
    client.force_login(alice)
    page = client.get("/standing/").content.decode()
    assert "Past use counts half after 2 days" in page
    assert f"reservation {big.pk}) would improve the rank to 2nd" in page, (
        "without it only Carol, who has nothing, is ahead"
    )
    assert "With no new bookings, you would be 2nd instead of 3rd of" in page, (
        "Alice's is over and fades by then, Bob's still counts whole"
    )
    assert "No no-shows in the last 30 days." in page and "No vouchers." in page
    own = alice.memberships.get()
    Voucher.objects.create(membership=own, given_for=big, reason="a GPU was lost")
    Reservation.objects.filter(pk=big.pk).update(no_show=True, ended_at=now)
    page = client.get("/standing/").content.decode()
    assert "A voucher for one firm booking at any time" in page
    assert "1 no-show in the last 30 days. After 3 of them" in page
    assert (
        client.get(f"/standing/?membership={bob.memberships.get().pk}").status_code
        == 404
    )
    own.is_head = True
    own.save()
    bobs = client.get(f"/standing/?membership={bob.memberships.get().pk}")
    assert "What would move Bob up" in bobs.content.decode()
    assert "a GPU was lost" not in bobs.content.decode()

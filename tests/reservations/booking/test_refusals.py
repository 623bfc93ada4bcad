"""Refusals are stored with their reasons and are decided the same again.

See docs/design/fair-booking.md#i14.
"""

import json
from datetime import timedelta

import pytest
from django.urls import reverse

from reservations.accounts.erasure import _drop_own
from reservations.booking import refusals
from reservations.booking.booking_change import change
from reservations.models import (
    Account,
    Closure,
    RefusedRequest,
    SitePolicy,
    WaitingRequest,
)
from reservations.operations import pools
from reservations.operations.pools import PoolEdit
from reservations.rules.decision_record import recompute_refusal
from reservations.rules.errors import GpuTaken, Refusal
from tests.factories import at, make_gpus, make_node, make_pool
from tests.reservations.conftest import HOUR, NOW, WEIGHT


def ask(lab, user, gpus, start, hours, now=NOW) -> Refusal:
    with pytest.raises(Refusal) as found:
        lab.book(user, gpus, start, hours, now=now)
    return found.value


def test_every_refusal_is_kept_without_names_and_decides_the_same_again(
    lab, alice, bob, carol, omar, client
) -> None:
    one, two, three, four = lab.gpus
    lab.book(alice, [one], at(12), 2)
    closed = Closure.objects.create(
        kind="maintenance", scope="gpus", start=at(12), end=at(14), reason="new fans"
    )
    closed.gpus.add(two)
    special = make_gpus(1, make_node("node-h"), pool=make_pool("H200", weight=18))
    vision = Account.objects.get(name="vision")
    pools.change_pool(
        pool_id=special[0].pool_id,
        actor=omar,
        now=NOW,
        reason="theirs",
        edit=PoolEdit(weight=18, account_ids=(vision.pk,)),
    )
    WaitingRequest.objects.create(
        user=alice,
        membership=alice.memberships.get(),
        count=1,
        planned=True,
        duration_seconds=4 * HOUR,
        earliest=NOW,
        latest=at(9, day=9),
        expected_start=at(20, day=3),
        expected_end=at(23, day=3),
        expected_gpu_ids=[three.pk],
    )
    lab.set(quota_gpu_seconds=WEIGHT * 2 * HOUR)
    asked = [
        ([one], at(13), 2, "gpu-taken"),
        ([two], at(13), 2, "closed-then"),
        (special, at(13), 2, "pool-not-yours"),
        ([four], at(13, day=9), 3, "quota-exceeded"),
        ([three], at(21, day=3), 4, "planned-for"),
        ([four], at(13, day=30), 1, "beyond-horizon"),
        (lab.gpus + special, at(9, day=4), 1, "pool-not-yours"),
    ]
    told = [ask(lab, carol, *what) for *what, _ in asked]
    rows = list(RefusedRequest.objects.order_by("pk"))
    assert [row.rule for row in rows] == [rule for *_, rule in asked]
    assert isinstance(told[0], GpuTaken) and told[0].user == "Alice"
    for row, refusal in zip(rows, told, strict=True):
        assert "Alice" not in json.dumps([row.text, row.fields, row.inputs])
        policy = SitePolicy.of_version(row.inputs["policy"])
        again = recompute_refusal(row.inputs, policy)
        assert json.loads(json.dumps(again.numbers)) == row.fields
        assert again.text() == row.text or row.rule == "gpu-taken"
        assert (row.works_instead is None) == (refusal.next_slot is None)
    check_changes(lab, carol, one, four)
    # A user's own refusals are on their page, with the bookings that would have worked.
    client.force_login(carol)
    page = client.get(reverse("standing")).content.decode()
    assert "Refused requests" in page and "under maintenance" in page
    assert "This would have worked: " in page
    client.force_login(bob)
    assert "Refused requests" not in client.get(reverse("standing")).content.decode()


def check_changes(lab, carol, one, four) -> None:
    """A change is decided like a booking; what is only asked wrongly is no decision."""
    before = RefusedRequest.objects.count()
    mine = lab.book(carol, [four], at(15), 1)
    with pytest.raises(Refusal):
        change(
            reservation_id=mine.pk,
            user=carol,
            start=at(12),
            end=at(14),
            gpu_ids=[one.pk],
            version=mine.version,
            now=NOW,
        )
    assert RefusedRequest.objects.first().rule == "gpu-taken"
    with pytest.raises(Refusal):
        change(
            reservation_id=mine.pk,
            user=carol,
            start=at(12),
            end=at(14),
            version=mine.version + 1,
            now=NOW,
        )
    ask(lab, carol, [four], at(1), 1)
    assert RefusedRequest.objects.count() == before + 1


def test_asking_costs_nothing_so_only_the_newest_refusals_stay(
    lab, alice, carol, monkeypatch
) -> None:
    monkeypatch.setattr(refusals, "KEPT", 2)
    lab.book(alice, lab.gpus[:1], at(12), 2)
    for minute in range(4):
        ask(lab, carol, lab.gpus[:1], at(12), 1, now=NOW + timedelta(minutes=minute))
    rows = RefusedRequest.objects.filter(membership__user=carol)
    assert [row.asked_at.minute for row in rows] == [3, 2]
    assert refusals.forget_old(NOW + refusals.KEPT_FOR) == 0
    ask(lab, carol, lab.gpus[:1], at(12), 1, now=NOW + timedelta(minutes=9))
    assert refusals.forget_old(NOW + refusals.KEPT_FOR + timedelta(minutes=4)) == 1
    _drop_own(carol, NOW)
    assert not rows.all().exists()

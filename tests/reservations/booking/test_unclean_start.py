"""A stranger on the Gpu at the start is the site's failure, not the student's."""

from datetime import timedelta

import pytest

from reservations import tick
from reservations.models import LedgerEntry, Voucher
from reservations.presence.check_in import check_in
from reservations.rules.lifecycle import State
from telemetry.models import Alert
from tests.reservations.conftest import at, balance


def stranger(gpu, since, rule="intruder") -> None:
    """Report another user's process on a Gpu."""
    Alert.objects.create(rule=rule, gpu=gpu, opened_at=since, last_seen_at=since)


def gpus_of(made) -> list[int]:
    return sorted(made.allocations.values_list("gpu_id", flat=True))


@pytest.mark.once
def test_an_equal_gpu_is_given_for_one_that_is_not_clean(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], at(10), 2)
    tick.tick(at(10))
    stranger(lab.gpus[0], at(9, 58), rule="overrun")
    assert tick.tick(at(10, 1))["unclean"] == 0, "it may still go by itself"
    assert tick.tick(at(10, 3))["unclean"] == 1
    made.refresh_from_db()
    assert made.state == State.ACTIVE
    assert gpus_of(made) == [lab.gpus[1].pk]
    assert balance(made)[0] == made.cost_gpu_seconds
    assert tick.tick(at(10, 4))["unclean"] == 0
    assert not Voucher.objects.exists()


def test_without_an_equal_gpu_all_is_given_back_with_a_token(lab, alice, bob) -> None:
    made = lab.book(alice, lab.gpus[:1], at(10), 2)
    for gpu in lab.gpus[1:]:
        stranger(gpu, at(9), rule="squatter")
    tick.tick(at(10))
    stranger(lab.gpus[0], at(10))
    assert tick.tick(at(10, 3))["unclean"] == 1
    made.refresh_from_db()
    assert made.state == State.REFUNDED
    assert not made.allocations.filter(live=True).exists()
    mine = LedgerEntry.objects.filter(membership=made.membership)
    assert sum(row.gpu_seconds for row in mine) == 0
    token = Voucher.objects.get()
    assert (token.membership, token.given_for) == (made.membership, made)
    assert tick.tick(at(10, 4))["unclean"] == 0


@pytest.mark.once
def test_a_gpu_that_somebody_booked_is_not_given_away(lab, alice, bob) -> None:
    made = lab.book(alice, lab.gpus[:1], at(10), 2)
    for gpu in lab.gpus[1:]:
        make = lab.book(bob, [gpu], at(11), 1) if gpu == lab.gpus[1] else None
        if make is None:
            stranger(gpu, at(9), rule="squatter")
    tick.tick(at(10))
    stranger(lab.gpus[0], at(10))
    tick.tick(at(10, 3))
    made.refresh_from_db()
    assert made.state == State.REFUNDED


@pytest.mark.once
def test_who_came_later_is_an_intruder_and_no_unclean_start(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], at(10), 2)
    tick.tick(at(10))
    stranger(lab.gpus[0], at(10) + timedelta(minutes=5))
    assert tick.tick(at(10, 8))["unclean"] == 0
    made.refresh_from_db()
    assert gpus_of(made) == [lab.gpus[0].pk]


@pytest.mark.once
def test_once_the_holder_has_come_nothing_is_moved(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], at(10), 2)
    tick.tick(at(10))
    stranger(lab.gpus[0], at(9, 59))
    check_in(reservation_id=made.pk, now=at(10, 1), by="click")
    assert tick.tick(at(10, 5))["unclean"] == 0
    made.refresh_from_db()
    assert gpus_of(made) == [lab.gpus[0].pk]


def test_who_overran_pays_the_overrun_and_the_site_the_rest(lab, alice, bob) -> None:
    before = lab.book(bob, lab.gpus[:1], at(9), 1)
    check_in(reservation_id=before.pk, now=at(9, 1))
    made = lab.book(alice, lab.gpus[:2], at(10), 2)
    for gpu in lab.gpus[2:]:
        stranger(gpu, at(9), rule="squatter")
    tick.tick(at(10))
    stranger(lab.gpus[0], at(10))
    Alert.objects.filter(gpu=lab.gpus[0]).update(detail={"users": ["bob"]})
    assert tick.tick(at(10, 3))["unclean"] == 1
    made.refresh_from_db()
    assert made.state == State.REFUNDED
    assert balance(before) == (0, 10 * (3600 + 3 * 60))
    site = LedgerEntry.objects.get(membership=None)
    assert site.gpu_seconds == 10 * 3 * 60, "the one Gpu that Alice did have"
    assert tick.tick(at(10, 4))["unclean"] == 0
    assert balance(before) == (0, 10 * (3600 + 3 * 60))


def test_an_overrun_is_paid_where_an_equal_gpu_helped(lab, alice, bob) -> None:
    before = lab.book(bob, lab.gpus[:1], at(9), 1)
    check_in(reservation_id=before.pk, now=at(9, 1))
    lab.book(alice, lab.gpus[:1], at(10), 2)
    tick.tick(at(10))
    Alert.objects.create(
        rule="overrun",
        gpu=lab.gpus[0],
        opened_at=at(10, 1),
        last_seen_at=at(10, 1),
        reservation_id=before.pk,
    )
    assert tick.tick(at(10, 4))["unclean"] == 1
    assert balance(before) == (0, 10 * (3600 + 4 * 60))
    assert not Voucher.objects.exists()

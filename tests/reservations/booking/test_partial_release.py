"""Give back a part: the announced cost is the actual cost."""

from datetime import timedelta

import pytest

from reservations import tick
from reservations.booking import partial_release
from reservations.management.commands.check_books import findings
from reservations.models import Reservation
from reservations.presence.check_in import check_in
from reservations.rules.errors import NotAllowed, NotChangeable, NotFound, NothingLeft
from reservations.rules.lifecycle import State
from tests.reservations.conftest import HOUR, NOW, WEIGHT, at, balance


@pytest.mark.once
def test_one_gpu_of_a_running_reservation_goes_and_the_other_runs_on(
    lab, alice, bob
) -> None:
    row = lab.book(alice, lab.gpus[:2], NOW, 4)
    check_in(reservation_id=row.pk, now=NOW)
    row.refresh_from_db()
    later = NOW + timedelta(hours=1)
    act = {"reservation_id": row.pk, "user": alice, "gpu_ids": [lab.gpus[1].pk]}
    told = partial_release.price(**act, now=later)
    assert told.gpu_ids == (lab.gpus[0].pk,)
    assert told.returned_gpu_seconds == WEIGHT * 3 * HOUR
    assert told.late_gpu_seconds == WEIGHT * 3 * HOUR / 2

    left = partial_release.give_back_part(**act, version=row.version, now=later)
    assert (left.pk, left.state, left.cost_gpu_seconds) == (
        row.pk,
        State.ACTIVE,
        WEIGHT * 4 * HOUR,
    )
    assert left.checked_in_at == NOW
    part = Reservation.objects.exclude(pk=row.pk).get()
    assert (part.state, part.end) == (State.RELEASED, later)
    assert balance(part) == (0, WEIGHT * HOUR), "what was used"
    assert list(findings()) == []
    # Bob takes the first of the three hours: it is not charged twice.
    lab.book(bob, lab.gpus[1:2], later, 1, now=later)
    tick.tick(NOW + timedelta(hours=5))
    assert balance(part) == (0, WEIGHT * HOUR + WEIGHT * 2 * HOUR // 2)
    assert balance(row) == (0, WEIGHT * 4 * HOUR)
    assert list(findings()) == []


@pytest.mark.once
def test_the_last_hours_and_a_gpu_of_what_is_ahead_go_at_the_price_that_was_told(
    lab, alice
) -> None:
    row = lab.book(alice, lab.gpus[:2], at(12), 4)
    act = {
        "reservation_id": row.pk,
        "user": alice,
        "gpu_ids": [lab.gpus[1].pk],
        "last_seconds": 90 * 60,
    }
    told = partial_release.price(**act, now=NOW)
    assert told.end == at(15), "on the grid, for the holder's good"
    # Gpu 1 for four hours, Gpu 0 for one.
    assert told.returned_gpu_seconds == WEIGHT * 5 * HOUR
    left = partial_release.give_back_part(**act, version=row.version, now=NOW)
    assert (left.end, left.cost_gpu_seconds) == (at(15), WEIGHT * 3 * HOUR)
    tick.tick(at(12))
    tick.tick(at(16))
    charged = balance(row)[1] - WEIGHT * 3 * HOUR
    assert charged == told.late_gpu_seconds == WEIGHT * 5 * HOUR / 2

    far = lab.book(alice, lab.gpus[:1], at(12, day=6), 4)
    free = partial_release.price(
        reservation_id=far.pk, user=alice, last_seconds=HOUR, now=NOW
    )
    assert (free.returned_gpu_seconds, free.late_gpu_seconds) == (WEIGHT * HOUR, 0)


@pytest.mark.once
def test_nothing_left_is_no_part_and_others_give_nothing_back(lab, alice, bob) -> None:
    row = lab.book(alice, lab.gpus[:1], NOW, 4)
    later = NOW + timedelta(hours=1)

    def give(user=alice, now=later, **what) -> None:
        partial_release.give_back_part(
            reservation_id=row.pk, user=user, version=row.version, now=now, **what
        )

    with pytest.raises(NothingLeft, match=r"all of the booking\. End it"):
        give(gpu_ids=[lab.gpus[0].pk])
    with pytest.raises(NothingLeft, match=r"all of the booking\. End it"):
        give(last_seconds=4 * HOUR)
    with pytest.raises(NotFound):
        give(gpu_ids=[lab.gpus[3].pk])
    with pytest.raises(NotAllowed):
        give(user=bob, last_seconds=HOUR)
    with pytest.raises(NotAllowed):
        partial_release.price(
            reservation_id=row.pk, user=bob, last_seconds=HOUR, now=later
        )
    with pytest.raises(NotChangeable):
        give(now=NOW + timedelta(hours=4), last_seconds=HOUR)

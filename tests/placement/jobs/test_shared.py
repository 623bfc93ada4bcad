"""A co-user's Jobs in a shared Reservation: they end with the right to be there."""

from datetime import timedelta

import pytest

from placement.jobs import service as jobs
from placement.jobs.release_guard import JobThere
from placement.jobs.tick import job_tick
from placement.jobs.tick import job_tick as ticking_service
from placement.jobs.views.viewer import usable_reservations
from placement.planner.values.errors import LaunchInvalid
from placement.protocol.job_lifecycle import JobState
from reservations.booking import partial_release
from reservations.booking.booking_undo import undo_booking
from reservations.rules.errors import NotFound
from reservations.sharing import co_use
from tests.placement.stage import NOW, fact, now_is, record

pytestmark = pytest.mark.django_db


def launch(user, reservation, **more):
    return jobs.launch(
        user=user,
        reservation_id=reservation.pk,
        name="try",
        kind="recipe",
        recipe="burn-in",
        now=NOW,
        **more,
    )


@pytest.mark.once
def test_a_co_user_runs_as_themselves_without_checking_in_until_taken_off(
    reservation, alice, bob, orders
) -> None:
    bob.unix_user = "bob1"
    bob.save()
    with pytest.raises(NotFound):
        launch(bob, reservation)
    co_use.share(reservation_id=reservation.pk, user=alice, username="bob", now=NOW)
    assert [one.pk for one in usable_reservations(bob, NOW)] == [reservation.pk]
    with pytest.raises(LaunchInvalid) as refused:
        launch(bob, reservation, may_move=True)
    assert set(refused.value.fields) == {"may_move"}
    job = launch(bob, reservation)
    ticking_service.tick(NOW)
    (order,) = orders()
    assert (order.user, order.unix_user) == ("bob", "bob1")
    record(fact(job, "started"))
    reservation.refresh_from_db()
    assert now_is(job) == JobState.RUNNING
    assert reservation.checked_in_at is None, "only the owner checks in"

    later = NOW + timedelta(seconds=1)
    assert job_tick.tick(later)["stopped"] == 0
    co_use.unshare(
        reservation_id=reservation.pk, user=alice, co_user_id=bob.pk, now=later
    )
    assert job_tick.tick(later)["stopped"] == 1
    assert now_is(job) == JobState.STOPPING
    job.refresh_from_db()
    assert job.reason == "the reservation is no longer shared with its owner"
    record(fact(launch(alice, reservation), "started"))


@pytest.mark.once
def test_gpus_that_a_job_runs_on_are_not_given_back_under_it(
    running, reservation, alice
) -> None:
    reservation.refresh_from_db()
    gone = list(reservation.allocations.values_list("gpu_id", flat=True))[:1]
    give = {"reservation_id": reservation.pk, "user": alice, "gpu_ids": gone}
    with pytest.raises(JobThere) as refused:
        partial_release.give_back_part(**give, version=reservation.version, now=NOW)
    assert refused.value.job == running.pk


def test_a_booking_is_not_undone_under_a_job(reservation, alice, bob, orders) -> None:
    """Also not under a Job that starts, or a co-user's. Neither is a check-in
    undone.
    """
    co_use.share(reservation_id=reservation.pk, user=alice, username="bob", now=NOW)
    type(reservation).objects.filter(pk=reservation.pk).update(created_at=NOW)
    bob.unix_user = "bob1"
    bob.save()
    undo = {"reservation_id": reservation.pk, "user": alice}
    job = launch(bob, reservation)
    ticking_service.tick(NOW)
    assert now_is(job) == JobState.STARTING
    with pytest.raises(JobThere):
        undo_booking(**undo, now=NOW)
    record(fact(job, "started"))
    with pytest.raises(JobThere):
        undo_booking(**undo, now=NOW + timedelta(seconds=5))
    reservation.refresh_from_db()
    assert reservation.state == "active"

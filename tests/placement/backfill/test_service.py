"""Jobs that run in gaps: taken, claimed, left in time, continued, stopped."""

from datetime import timedelta

import pytest

from placement import tick as placement_tick
from placement.backfill.service import queue_for_gaps, stop_in_gaps
from placement.jobs import service as jobs
from placement.models import Backfill, Job
from placement.planner.values.errors import LaunchInvalid
from placement.protocol.commands import OrderKind
from placement.protocol.job_lifecycle import JobState
from reservations import tick as tick_service
from reservations.booking import service as booking
from reservations.booking.booking_change import change
from reservations.models import LedgerEntry, Membership, Notice, Reservation, SitePolicy
from reservations.rules.lifecycle import Kind, State
from reservations.store.booking_facts import own_holdings, site_policy
from reservations.waitlist import service as waiting
from telemetry.models import Alert, Node
from telemetry.protocol.coded_error import CodedError
from tests.factories import make_gpus
from tests.placement.lab import signed_in
from tests.placement.stage import NOW as STAGE
from tests.placement.stage import fact, now_is, record

pytestmark = pytest.mark.django_db
NOW = STAGE.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
JOB = {
    "name": "sweep",
    "kind": "recipe",
    "recipe": "burn-in",
    "recipe_settings": {"seconds": 5},
}


@pytest.fixture(autouse=True)
def rules(node) -> None:
    policy = SitePolicy.current()
    policy.grid_seconds, policy.stop_grace_seconds = 300, 30
    policy.save()


def ask(user, now=NOW, job=None, **wants) -> Backfill:
    return queue_for_gaps(user=user, job=JOB | (job or {}), now=now, **wants)


def tick(now) -> dict[str, int]:
    """One second of the live portal: reservations, then jobs."""
    Node.objects.update(last_seen_at=now)
    tick_service.tick(now)
    return placement_tick.tick(now)


def book(user, gpus, start, hours=1.0, now=NOW) -> Reservation:
    return booking.book(
        user=user,
        membership=None,
        gpu_ids=[gpu.pk for gpu in gpus],
        start=start,
        end=start + timedelta(hours=hours),
        now=now,
    )


def stretch_of(row) -> Job:
    row.refresh_from_db()
    return row.stretches.order_by("pk").last()


def start(job, now) -> None:
    tick(now)
    job.refresh_from_db()
    assert record(fact(job, "started", at=now.timestamp()), now, job.node.name)


def end(job, now, **how) -> None:
    job.refresh_from_db()
    said = fact(job, how.pop("event", "exited"), at=now.timestamp(), **how)
    assert record(said | {"attempt": job.attempt}, now, job.node.name)
    tick(now)


def test_a_job_goes_from_gap_to_gap_and_gives_way_to_every_booking(
    alice, bob, node, orders
) -> None:
    (gpu,) = make_gpus(1, node)
    soon = book(bob, [gpu], NOW + 2 * HOUR)
    row = ask(alice, shortest_minutes=20, total_hours=3)
    assert tick(NOW)["gaps_taken"] == 1
    job = stretch_of(row)
    held = job.reservation
    assert (row.state, row.attempt, job.gpu_ids) == ("running", 1, [])
    assert (held.kind, held.end, held.booked_end) == (Kind.FLEX, soon.start, NOW)
    assert own_holdings(alice.pk) == (), "no booking of hers is refused for it"
    start(job, NOW + MINUTE)
    assert [o.kind for o in orders()] == [OrderKind.START]

    # Bob books the Gpu for now: the job gets its minute, and is notified at once.
    claim = NOW + 10 * MINUTE
    taken = book(bob, [gpu], claim, 0.5, now=claim)
    assert taken.start == claim + MINUTE, "the grace of 30 s and the way"
    assert taken.end == claim + 30 * MINUTE
    tick(claim)
    assert [o.deadline_at for o in orders()] == [taken.start.timestamp()]
    assert now_is(job) == JobState.RUNNING
    tick(claim + 21 * (MINUTE / 60))
    tick(claim + 21 * (MINUTE / 60))
    assert now_is(job) == JobState.STOPPING and "gap is over" in job.reason
    (stop,) = [o for o in orders() if o.kind is OrderKind.STOP]
    assert stop.grace_seconds == 30
    end(job, claim + 30 * (MINUTE / 60), exit_code=0, stopped=True)
    row.refresh_from_db()
    held.refresh_from_db()
    assert (row.state, row.attempt, row.used_seconds) == ("queued", 1, 630)
    assert (held.state, held.end) == (State.RELEASED, claim + 30 * (MINUTE / 60))
    charged = LedgerEntry.objects.filter(reservation=held)
    assert sum(e.gpu_seconds for e in charged if e.kind == "charge") == 6300
    assert sum(e.gpu_seconds for e in charged if e.kind != "charge") == 0
    assert not held.late_returns.exists()
    assert not Notice.objects.filter(user=alice).exists(), "no news: it goes on"

    tick(taken.start)
    row.refresh_from_db()
    assert "none is free" in row.reason and row.likely_at == taken.end

    # The next gap, from the checkpoint of the last one, on its node.
    tick(taken.end)
    again = stretch_of(row)
    assert (again.resume_from, again.reservation.start) == (job, taken.end)
    assert again.reservation.end == soon.start and row.attempt == 2
    page = signed_in(alice).get(f"/jobs/{again.pk}/").content.decode()
    assert "pauses when someone books its GPUs" in page and "in 2 runs" in page
    assert f'<a href="/jobs/{job.pk}/">job {job.pk}</a>' in page
    # It never begins, so the next one gets its checkpoint.
    jobs.stop(job_id=again.pk, user=alice, now=taken.end)
    tick(taken.end + MINUTE)
    row.refresh_from_db()
    assert (row.state, row.reason) == ("stopped", "stopped by its owner")
    assert again.reservation.allocations.get().live is False


def test_what_runs_in_gaps_ends_by_itself_by_its_time_or_with_its_node(
    alice, bob, node
) -> None:
    gpus = make_gpus(2, node)
    one = ask(alice, shortest_minutes=10, total_hours=0.5)
    two = ask(alice, shortest_minutes=10)
    tick(NOW)
    short, long = stretch_of(one), stretch_of(two)
    assert short.reservation.end == NOW + 30 * MINUTE + 40 * (MINUTE / 60)
    assert long.reservation.end == NOW + 4 * HOUR, "no more at once: it counts as usage"
    for job in (short, long):
        start(job, NOW + MINUTE)

    # Lost with its node: once more, from its checkpoint, and then not again.
    assert two.retries == 3
    Backfill.objects.filter(pk=two.pk).update(retries=1)
    end(long, NOW + 5 * MINUTE, event="lost", reason="power")
    row = Backfill.objects.get(pk=two.pk)
    assert (row.state, row.retries) == ("running", 0), "and the free Gpu is taken"
    again = stretch_of(two)
    assert again.resume_from == long
    start(again, NOW + 6 * MINUTE)
    end(again, NOW + 7 * MINUTE, event="lost", reason="power")
    two.refresh_from_db()
    assert two.state == "failed" and "lost with red" in two.reason

    # Its time is used: it is stopped, its checkpoint kept.
    tick(NOW + 30 * MINUTE)
    tick(NOW + 30 * MINUTE)
    assert now_is(short) == JobState.STOPPING
    end(short, NOW + 30 * MINUTE + 5 * (MINUTE / 60), exit_code=0, stopped=True)
    one.refresh_from_db()
    assert one.state == "stopped" and one.reason.startswith("its 30 min are used")
    assert Notice.objects.filter(user=alice, kind="job_done").count() == 1

    # It ends on its own. A gap near its end is prolonged unless another request waits.
    three = ask(alice, now=NOW + HOUR, shortest_minutes=10)
    tick(NOW + HOUR)
    job = stretch_of(three)
    start(job, NOW + HOUR)
    late = job.reservation.end - 20 * MINUTE
    tick(late)
    job.reservation.refresh_from_db()
    assert job.reservation.end == late + 4 * HOUR
    end(job, late + MINUTE, exit_code=0)
    three.refresh_from_db()
    assert three.state == "done"
    assert not Reservation.objects.live().exists()
    assert not Job.objects.live().exists() and len(gpus) == 2


def test_gaps_go_to_sound_free_gpus_in_fair_order_after_the_waitlist(
    alice, bob, carol, node
) -> None:
    a, b = make_gpus(2, node)
    # Alice's group has used more: Carol, who asked later, is served first.
    SitePolicy.objects.update(gpus_at_once=2)
    book(alice, [b], NOW + 6 * HOUR, 8)
    mine, hers = ask(alice), ask(carol, now=NOW + MINUTE)
    Alert.objects.create(gpu=b, rule="intruder", opened_at=NOW, last_seen_at=NOW)
    tick(NOW + MINUTE)
    assert stretch_of(hers).reservation.allocations.get().gpu == a
    mine.refresh_from_db()
    assert mine.state == "queued" and "none is free" in mine.reason

    # Waiting requests come first: the repaired Gpu is Bob's, not Alice's.
    Alert.objects.update(closed_at=NOW)
    waiting.ask(
        user=bob,
        membership=None,
        count=1,
        duration_seconds=3600,
        any_notice=True,
        earliest=NOW,
        latest=NOW + 5 * HOUR,
        now=NOW + MINUTE,
    )
    placement_tick.tick(NOW + 2 * MINUTE)
    mine.refresh_from_db()
    assert "waitlist" in mine.reason
    tick(NOW + 3 * MINUTE)
    assert Reservation.objects.get(user=bob).start == NOW + 3 * MINUTE
    mine.refresh_from_db()
    assert mine.state == "queued"

    # Two Gpus at once are all that one person may hold, gaps and bookings together.
    tick(NOW + 2 * HOUR)
    gap = stretch_of(mine).reservation
    assert gap.end == NOW + 6 * HOUR, "until the next booking of its Gpu"
    with pytest.raises(CodedError, match="job that runs in gaps"):
        change(
            reservation_id=gap.pk,
            user=alice,
            end=NOW + 9 * HOUR,
            version=gap.version,
            now=NOW + 2 * HOUR,
        )
    with pytest.raises(LaunchInvalid):
        jobs.launch(
            user=alice,
            reservation_id=gap.pk,
            now=NOW + 2 * HOUR,
            **{**JOB, "name": "more"},
        )
    more = ask(alice, now=NOW + 2 * HOUR, gpu_class="", job={"gpus": 2})
    tick(NOW + 2 * HOUR + MINUTE)
    more.refresh_from_db()
    assert "2" in more.reason and more.state == "queued"
    stop_in_gaps(backfill_id=more.pk, user=alice, now=NOW + 2 * HOUR)
    more.refresh_from_db()
    assert more.state == "stopped"
    assert Membership.objects.filter(user=bob).exists()


def test_what_no_gap_could_do_is_refused_by_field(bob, node) -> None:
    make_gpus(2, node)
    for wrong, field in (
        ({"shortest_minutes": 0}, "shortest_minutes"),
        ({"total_hours": 0.1}, "total_hours"),
        ({"gpu_class": "no such"}, "gpus"),
        ({"min_memory_gib": 1000}, "gpus"),
        ({"job": {"gpus": 3}}, "gpus"),
        ({"job": {"recipe": "no such"}}, "recipe"),
    ):
        with pytest.raises(LaunchInvalid) as refused:
            ask(bob, **wrong)
        assert field in refused.value.fields, wrong
    assert site_policy().gpus_at_once > 2 and not Backfill.objects.exists()

"""What a Job came to: so far, kept when it ends, within its Reservation only."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from placement.jobs.job_transitions import move
from placement.jobs.job_usage import job_usage
from placement.models import Job
from placement.protocol.job_lifecycle import JobState
from telemetry.history.minute_store import record_minutes
from telemetry.history.stored_usage import fill_summaries
from telemetry.models import SampleMinute, UsageSummary
from telemetry.rules.rollup import MinuteTotals
from tests.factories import make_gpus, make_node, make_reservation

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


@pytest.fixture
def started():
    """Forty minutes before this one."""
    return timezone.now().replace(second=0, microsecond=0) - 40 * MINUTE


@pytest.fixture
def job(alice, started) -> Job:
    """Runs since then on one of two nodes; its Reservation has Gpus on both."""
    here, there = make_node("node-a"), make_node("node-b")
    gpus = [*make_gpus(2, here), *make_gpus(1, there)]
    held = make_reservation(
        alice, gpus, started - 10 * MINUTE, started + 60 * MINUTE, state="active"
    )
    utils = {gpus[0]: 80, gpus[1]: 40, gpus[2]: 5}
    record_minutes(
        totals={
            (gpu.pk, int((started + number * MINUTE).timestamp())): MinuteTotals(
                n=60, util_n=60, util_sum_pct=60 * util, energy_joules=36_000
            )
            for gpu, util in utils.items()
            for number in range(-5, 20)
        }
    )
    return Job.objects.create(
        reservation=held,
        owner=alice,
        name="train",
        kind=Job.Kind.RECIPE,
        node=here,
        state=JobState.RUNNING,
        started_at=started,
    )


@pytest.mark.once
def test_it_counts_so_far_on_its_own_node_and_from_its_start(job, alice, started):
    usage = job_usage(job, now=started + 10 * MINUTE)
    assert usage is not None
    assert (usage.totals.util_mean_pct, usage.util_p95_pct) == (60, 80)
    assert (usage.totals.n, usage.gpu_seconds) == (1200, 1200)
    client = Client()
    client.force_login(alice)
    page = client.get(f"/jobs/{job.pk}/").content.decode()
    assert "Usage so far" in page
    assert "60 %" in page


def test_every_end_has_it_counted_and_it_outlives_its_minutes(job, alice, started):
    end = started + 15 * MINUTE
    moved = move(job, JobState.DONE, now=end, actor="node-a", fields={"ended_at": end})
    assert moved
    assert UsageSummary.objects.filter(job_id=job.pk).count() == 3
    fill_summaries(now=end + 90 * MINUTE)
    SampleMinute.objects.all().delete()
    job.refresh_from_db()
    usage = job_usage(job, now=timezone.now())
    assert usage is not None
    assert (usage.totals.n, usage.totals.util_mean_pct) == (1800, 60)
    assert usage.energy_kwh == pytest.approx(0.3)
    client = Client()
    client.force_login(alice)
    answer = client.get(f"/api/v1/jobs/{job.pk}/usage").json()
    assert answer["usage"]["util_p95_pct"] == 80
    page = client.get(f"/jobs/{job.pk}/").content.decode()
    assert ">Usage</h2>" in page and "so far" not in page


def test_what_its_gpus_do_after_the_reservation_is_not_its_own(job, started):
    job.reservation.allocations.update(end=started + 5 * MINUTE)
    usage = job_usage(job, now=started + 20 * MINUTE)
    assert usage is not None
    assert usage.totals.n == 600


def test_a_job_that_never_ran_has_none(job, alice):
    Job.objects.filter(pk=job.pk).update(started_at=None, state=JobState.QUEUED)
    job.refresh_from_db()
    assert job_usage(job, now=timezone.now()) is None
    assert move(job, JobState.STOPPED, now=timezone.now(), actor="alice")
    assert not UsageSummary.objects.exists()
    client = Client()
    client.force_login(alice)
    assert client.get(f"/api/v1/jobs/{job.pk}/usage").json()["usage"] is None


@pytest.mark.once
def test_carol_cannot_see_what_bobs_job_came_to(job, carol):
    client = Client()
    client.force_login(carol)
    assert client.get(f"/api/v1/jobs/{job.pk}/usage").status_code == 404

"""One booking and its jobs, from the calendar to the real Slurm 22.05 and back."""

import pytest
from celery import current_app
from django.utils import timezone

import gpuportal.celery
from placement.jobs import service as jobs
from placement.jobs.nodes import log_store
from placement.models import Job
from reservations.booking.release import release
from reservations.models import LedgerEntry
from tests.placement.agent.slurm.live_portal import LivePortal
from tests.placement.nodes import until

assert current_app.main == gpuportal.celery.app.main


@pytest.mark.once
@pytest.mark.django_db(transaction=True)
def test_a_booking_its_jobs_their_logs_a_stop_and_the_charge(
    portal: LivePortal,
) -> None:
    made = portal.book("gp1")
    first = portal.launch(made, "#!/bin/sh\necho $SLURM_JOB_RESERVATION loss=0.5\n")
    portal.until(first, Job.State.DONE)
    until(lambda: portal.step() or log_store.size(first))
    assert log_store.last_lines(first, 1) == [f"gp_lab1_{made.pk} loss=0.5"]
    assert first.node.name == "gp1"

    second = portal.launch(made, "#!/bin/sh\necho on\nwhile :; do sleep 1; done\n")
    portal.until(second, Job.State.RUNNING)
    made.refresh_from_db()
    assert made.checked_in_at is not None
    jobs.stop(job_id=second.pk, user=portal.user, now=timezone.now())
    portal.until(second, Job.State.STOPPED)
    # It may be completing.
    until(lambda: portal.cluster.run("squeue", "--noheader") == "")

    release(reservation_id=made.pk, user=portal.user, now=timezone.now())
    assert portal.reconcile() == {"release": 1}
    assert "gp_" not in portal.cluster.run("scontrol", "show", "reservations")
    charge = LedgerEntry.objects.get(reservation=made, kind="charge")
    assert charge.gpu_seconds > 0

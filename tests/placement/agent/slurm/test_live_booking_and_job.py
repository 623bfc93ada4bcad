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

assert current_app.main == gpuportal.celery.app.main
SCRIPT = """#!/bin/sh
echo $SLURM_JOB_RESERVATION $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES
echo "$GPUPORTAL_JOB $1" $(basename $PWD)
mkdir -p results; echo 1 >results/loss
echo step=1 loss=0.5; exit 7
"""


@pytest.mark.once
@pytest.mark.django_db(transaction=True)
def test_a_booking_its_jobs_their_logs_a_stop_and_the_charge(
    portal: LivePortal,
) -> None:
    made = portal.book("gp1")
    first = portal.launch(made, SCRIPT, 2, arguments=["a 'b"])
    portal.until(first, Job.State.FAILED)
    portal.works_until(lambda: log_store.size(first), "the log")
    assert log_store.last_lines(first, 3) == [
        f"gp_lab1_{made.pk} gp1 0,1",
        f"{first.pk} a 'b work",
        "step=1 loss=0.5",
    ]
    assert (first.node.name, first.exit_code) == ("gp1", 7)
    (folder,) = portal.keeper.runner.jobs.glob(f"{first.pk}-*")
    assert (folder / "work/results/loss").read_text() == "1\n"

    second = portal.launch(made, "#!/bin/sh\necho on\nwhile :; do sleep 1; done\n")
    portal.until(second, Job.State.RUNNING)
    portal.works_until(lambda: portal.log_of(second), "the log of the second job")
    made.refresh_from_db()
    assert made.checked_in_at is not None
    jobs.stop(job_id=second.pk, user=portal.user, now=timezone.now())
    portal.until(second, Job.State.STOPPED)
    # As on a node of the portal: no words of Slurm, and no exit status.
    assert portal.log_of(second) == "on\n"
    assert second.exit_code is None
    # It may be completing.
    squeue = ("squeue", "--noheader")
    portal.cluster.wait_until(lambda: portal.cluster.run(*squeue) == "")

    release(reservation_id=made.pk, user=portal.user, now=timezone.now())
    assert portal.reconcile() == {"release": 1}
    assert "gp_" not in portal.cluster.run("scontrol", "show", "reservations")
    charge = LedgerEntry.objects.get(reservation=made, kind="charge")
    assert charge.gpu_seconds > 0

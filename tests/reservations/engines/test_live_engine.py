"""Bookings of nodes of the real Slurm 22.05 of Debian."""

from datetime import datetime, timedelta

import pytest
from django.conf import settings
from django.utils import timezone

from reservations.booking.booking_change import change
from reservations.booking.release import cancel, release
from reservations.booking.service import book
from reservations.booking.slot_search import find_slots
from reservations.engines.engine_refusals import EngineRefused
from reservations.models import EngineHold, Reservation
from reservations.presence.engine_reconciliation import reconcile
from reservations.rules.window import grid_ceil
from telemetry.models import Gpu
from telemetry.slurm.service import read_cluster
from telemetry.slurm.slurm_commands import SlurmCommands
from tests.telemetry.slurm.conftest import _cluster, cluster
from tests.telemetry.slurm.slurm_processes import SlurmProcesses

__all__ = ["_cluster", "cluster"]


STRANGE = {
    "LC_ALL": "de_DE.UTF-8",
    "SLURM_TIME_FORMAT": "relative",
    "SQUEUE_FORMAT": "%all",
    "TZ": "America/New_York",
}


class Desk:
    """Books nodes of the cluster for one person, by the real clock."""

    def __init__(self, user, grid_seconds: int) -> None:
        self.user, self.grid_seconds = user, grid_seconds

    def after(self, hours: int) -> datetime:
        """Return a time on the grid."""
        return grid_ceil(timezone.now() + timedelta(hours=hours), self.grid_seconds)

    def book(self, node: str, start: datetime, end: datetime) -> Reservation:
        """Book all GPUs of a node."""
        gpus = Gpu.objects.filter(node__name=node)
        return book(
            user=self.user,
            membership=None,
            gpu_ids=[gpu.pk for gpu in gpus],
            start=start,
            end=end,
            now=timezone.now(),
        )

    def first_start(self, earliest: datetime) -> datetime:
        """Return the first start that a search finds for node gp2, by what Slurm says
        now."""
        read_cluster("lab", SlurmCommands(conf=settings.SLURM_CONF))
        found = find_slots(
            user=self.user,
            membership=None,
            count=2,
            min_memory_bytes=0,
            duration_seconds=3600,
            earliest=earliest,
            gpu_class="GPU (Slurm lab)",
            now=timezone.now(),
            limit=1,
        )
        return found[0].start


@pytest.fixture
def desk(lab, alice, cluster: SlurmProcesses, settings, monkeypatch) -> Desk:
    """Show the cluster on the board. Alice is the user who runs it. The variables with
    which a user changes what Slurm prints are set."""
    for name, value in STRANGE.items():
        monkeypatch.setenv(name, value)
    settings.SLURM_CLUSTER, settings.SLURM_BOOK = "lab", True
    settings.SLURM_SITE = "lab1"
    settings.SLURM_CONF = str(cluster.conf)
    alice.unix_user = cluster.run("id", "-un").strip()
    alice.save()
    read_cluster("lab", SlurmCommands(conf=settings.SLURM_CONF))
    return Desk(alice, lab.policy.grid_seconds)


def soon() -> datetime:
    """Return a time after all requests so far, as that of a tick."""
    return timezone.now() + timedelta(seconds=2)


@pytest.mark.once
@pytest.mark.django_db(transaction=True)
def test_a_node_is_booked_moved_refused_and_given_back(
    desk: Desk, cluster: SlurmProcesses
) -> None:
    start, end = desk.after(2), desk.after(3)
    edges = (f"StartTime={start:%Y-%m-%dT%H:%M:%S}", "Duration=60", "Users=root")
    name = ("reservation", "ReservationName=theirs", "Nodes=gp2")
    cluster.run("scontrol", "create", *name, *edges)
    with pytest.raises(EngineRefused, match="reserved gp2 for another purpose"):
        desk.book("gp2", start, end)
    assert desk.first_start(start) == end
    job = cluster.submit("--nodelist=gp2", "--exclusive", "--gres=gpu:1", "--time=60")
    cluster.wait_until(lambda: "RUNNING" in cluster.run("squeue", "-ho", "%T"))
    with pytest.raises(EngineRefused, match="A job of Slurm runs on gp2"):
        desk.book("gp2", timezone.now(), desk.after(1))
    assert desk.first_start(timezone.now()) > timezone.now() + timedelta(minutes=50)
    cluster.run("scancel", str(job))
    cluster.run("scontrol", "delete", "ReservationName=theirs")
    assert not Reservation.objects.exists()

    made = desk.book("gp1", start, end)
    slurm = SlurmCommands(conf=str(cluster.conf))
    (held,) = slurm.reservations(slurm.version())
    assert (held.name, held.nodes) == (f"gp_lab1_{made.pk}", ("gp1",))
    assert (held.start, held.end) == (start.timestamp(), end.timestamp())
    assert held.purge_seconds == 900
    assert reconcile(soon()) == {}
    later = desk.after(4)
    change(
        reservation_id=made.pk,
        user=desk.user,
        start=desk.after(3),
        end=later,
        version=made.version,
        now=timezone.now(),
    )
    (held,) = slurm.reservations(slurm.version())
    assert (held.start, held.end) == (desk.after(3).timestamp(), later.timestamp())
    cancel(reservation_id=made.pk, user=desk.user, now=timezone.now())
    assert reconcile(soon()) == {"release": 1}
    assert slurm.reservations(slurm.version()) == []


@pytest.mark.once
@pytest.mark.django_db(transaction=True)
def test_a_job_checks_in_and_delays_the_release(
    desk: Desk, cluster: SlurmProcesses
) -> None:
    made = desk.book("gp1", timezone.now(), desk.after(1))
    hold = f"gp_lab1_{made.pk}"
    short = ("--parsable", "--output=/dev/null", "--wrap=true")
    cluster.run("sbatch", f"--reservation={hold}", *short)
    cluster.wait_until(lambda: cluster.run("squeue", "--noheader") == "")
    # It has ended before anybody looked.
    assert reconcile(soon()) == {"checked_in": 1, "change": 1}
    job = cluster.submit(f"--reservation={hold}", "--time=20")
    cluster.wait_until(lambda: "RUNNING" in cluster.run("squeue", "-ho", "%T"))
    assert reconcile(soon()) == {}

    release(reservation_id=made.pk, user=desk.user, now=timezone.now())
    grace = soon() + timedelta(seconds=60)
    assert reconcile(soon()) == {"waits": 1}
    running = ("squeue", "--noheader", "--states=running", "--format=%i")
    assert cluster.run(*running).split() == [str(job)]
    cluster.wait_until(
        lambda: bool(reconcile(grace)) and EngineHold.objects.get().gone_at is not None
    )
    assert cluster.run(*running) == ""

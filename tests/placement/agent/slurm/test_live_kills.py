"""slurmctld and slurmd of the real Slurm 22.05 are killed in each state of a booking
and of a job: nothing is lost, doubled or refunded, and the portal goes on."""

from collections import Counter
from datetime import timedelta

import pytest
from celery import current_app
from django.utils import timezone

import gpuportal.celery
from placement.agent.slurm.slurm_client import CLIENT_FOLDER
from placement.jobs import service as jobs
from placement.models import Job
from reservations.booking.booking_change import change
from reservations.booking.release import cancel, release
from reservations.engines.engine_refusals import EngineRefused
from reservations.models import LedgerEntry, Reservation
from reservations.rules.lifecycle import State
from telemetry.models import SlurmGpu
from telemetry.rules.slurm_use import SlurmUse
from tests.placement.agent.slurm.live_portal import LivePortal
from tests.telemetry.slurm.deadly_commands import DeadlyCommands

assert current_app.main == gpuportal.celery.app.main
pytestmark = [
    pytest.mark.once,
    pytest.mark.django_db(transaction=True),
    # The controller stores its state every five seconds, and is waited for often.
    pytest.mark.timeout(600),
]
LOOP = "#!/bin/sh\necho begun\nwhile [ ! -e go ]; do sleep 0.2; done\necho over\n"
HARD = LOOP.replace("echo begun", "trap '' TERM\necho begun")
"""It ends only by SIGKILL, which Slurm sends after KillWait (15 s)."""


class Killer:
    """Kills the daemons, and looks whether everything is as it should be."""

    def __init__(self, portal: LivePortal, commands: DeadlyCommands) -> None:
        self.portal, self.cluster = portal, portal.cluster
        self.commands = commands

    def holds(self) -> dict[str, tuple[str, ...]]:
        """Return the nodes of each of the portal's reservations in Slurm."""
        found = self.portal.slurm.reservations(self.portal.slurm.version())
        return {one.name: one.nodes for one in found}

    def jobs(self) -> Counter[str]:
        """Return the states of the portal's jobs that are not over."""
        lines = self.cluster.run("squeue", "-ho", "%j %T").splitlines()
        return Counter(one.split()[1] for one in lines if one.startswith("gp-"))

    def loses_engine(self) -> None:
        """Check that a run in which the controller dies says so.

        A run that has no time left asks for nothing. The next one does.
        """
        done: dict[str, int] = {}
        while not done:
            done = self.portal.reconcile()
        assert done == {"engine_away": 1}

    def is_away(self) -> None:
        """Check that the portal says so, and cancels nothing."""
        before = list(Reservation.objects.values_list("pk", "state", "version"))
        assert not self.portal.look()
        assert self.portal.reconcile() == {"engine_away": 1}
        with pytest.raises(EngineRefused, match="Slurm does not answer"):
            self.portal.book("gp2", after_hours=9)
        assert before == list(Reservation.objects.values_list("pk", "state", "version"))

    def resumed(self) -> bool:
        """Resume node gp1. It is refused until the node has registered."""
        resume = ("NodeName=gp1", "State=RESUME")
        self.cluster.run("scontrol", "update", *resume, check=False)
        state = self.cluster.run("sinfo", "-hNo", "%T", "--nodes=gp1")
        return "drain" not in state and "*" not in state

    def has_begun(self, job: Job) -> bool:
        """Return whether a job has begun. If Slurm queued it again, let it start now
        and not after two minutes."""
        for line in self.cluster.run("squeue", "-ho", "%A %r").splitlines():
            number, _, why = line.partition(" ")
            if why == "BeginTime":
                self.cluster.run(
                    "scontrol", "update", f"JobId={number}", "StartTime=now"
                )
        return "begun\n" in self.portal.log_of(job)

    def wait_for_nodes(self) -> None:
        """Wait until both nodes have registered, and the board shows it."""
        away = SlurmGpu.objects.filter(use=SlurmUse.AWAY)
        self.cluster.wait_until(lambda: self.portal.look() and not away.exists())

    def restart(self) -> None:
        """Start the controller, and reconcile until nothing is left to do."""
        self.cluster.start_slurmctld()
        assert self.portal.look()
        self.cluster.wait_until(self.is_as_booked)
        kinds = set(LedgerEntry.objects.values_list("kind", flat=True))
        assert not kinds & {"refund"}
        assert not Reservation.objects.filter(state=State.REFUNDED).exists()

    def is_as_booked(self) -> bool:
        """Reconcile. Return whether Slurm holds exactly what is booked."""
        self.portal.reconcile()
        wanted = {
            f"gp_lab1_{row.pk}": tuple(
                {one.gpu.node.name for one in row.allocations.all()}
            )
            for row in Reservation.objects.live()
        }
        return self.holds() == wanted


@pytest.fixture
def killer(portal: LivePortal, tmp_path, settings, monkeypatch) -> Killer:
    # A kill would bring back what an earlier test has just ended.
    portal.cluster.restart_slurmctld()
    commands = DeadlyCommands(portal.cluster, tmp_path / "bin")
    settings.SLURM_FOLDER = str(commands.folder)
    monkeypatch.setenv(CLIENT_FOLDER, str(commands.folder))
    return Killer(portal, commands)


def test_the_daemons_are_killed_in_each_state_of_a_booking(killer: Killer) -> None:
    portal, commands, cluster = killer.portal, killer.commands, killer.cluster
    # A reservation is being made. The controller dies before, or after it.
    for when in ("before", "after"):
        commands.arm(when, "create")
        with pytest.raises(EngineRefused, match="Slurm does not answer"):
            portal.book("gp1", after_hours=2)
        assert commands.fired()
        killer.is_away()
        killer.restart()
        assert not Reservation.objects.exists()
        assert not LedgerEntry.objects.exists()

    # Planned and active. The controller has not stored them. The nodes die, too.
    killer.wait_for_nodes()
    planned = portal.book("gp1", after_hours=2)
    active = portal.book("gp2")
    for name in ("slurmctld", "gp1", "gp2"):
        cluster.kill(name)
    killer.is_away()
    killer.restart()
    for name in ("gp1", "gp2"):
        cluster.start_slurmd(name)

    # Being changed. The answer to the second change is lost.
    for when, hours in (("before", 3), ("after", 4)):
        planned.refresh_from_db()
        commands.arm(when, "update")
        portal.set_unix_user(portal.unix_user)
        with pytest.raises(EngineRefused, match="Slurm does not answer"):
            change(
                reservation_id=planned.pk,
                user=portal.user,
                start=planned.start,
                end=planned.end + timedelta(hours=hours),
                version=planned.version,
                now=timezone.now(),
            )
        assert commands.fired()
        killer.is_away()
        killer.restart()

    # Being released: by a cancel, and by the end.
    cancel(reservation_id=planned.pk, user=portal.user, now=timezone.now())
    commands.arm("before", "delete")
    killer.loses_engine()
    assert commands.fired()
    killer.restart()
    release(reservation_id=active.pk, user=portal.user, now=timezone.now())
    commands.arm("after", "delete")
    killer.loses_engine()
    assert commands.fired()
    killer.restart()
    assert killer.holds() == {}
    charges = LedgerEntry.objects.filter(kind="charge")
    assert [charge.reservation_id for charge in charges] == [active.pk]


def test_the_daemons_are_killed_in_each_state_of_a_job(killer: Killer) -> None:
    portal, commands, cluster = killer.portal, killer.commands, killer.cluster
    made = portal.book("gp1")
    cluster.run("scontrol", "update", "NodeName=gp1", "State=DRAIN", "Reason=fans")
    cluster.wait_for_saved_jobs()

    def says(job: Job, words: str) -> None:
        portal.works_until(lambda: words in portal.log_of(job), words)

    # Being submitted. The second one is accepted, and the controller forgets it.
    found = []
    for when, script in (("before", LOOP), ("after", HARD)):
        commands.arm(when, "sbatch")
        found.append(portal.launch(made, script, 2))
        says(found[-1], "The portal tries again")
        assert commands.fired()
        killer.is_away()
        killer.restart()
        says(found[-1], "Slurm answers again")

    # Pending, while the node dies too.
    cluster.wait_until(lambda: killer.jobs() == {"PENDING": 2})
    cluster.wait_for_saved_jobs()
    for name in ("slurmctld", "gp1"):
        cluster.kill(name)
    killer.is_away()
    killer.restart()

    # Starting: the controller gives them the node, whose slurmd is dead again.
    partition = ("scontrol", "update", "PartitionName=main")
    cluster.run(*partition, "State=DOWN")
    cluster.start_slurmd("gp1")
    cluster.wait_until(killer.resumed)
    cluster.kill("gp1")
    cluster.run(*partition, "State=UP")
    cluster.wait_until(lambda: killer.jobs() == {"RUNNING": 2})
    portal.step()
    assert not any("begun" in portal.log_of(job) for job in found)
    cluster.start_slurmd("gp1")
    for job in found:
        portal.works_until(lambda job=job: killer.has_begun(job), "a job that begins")
        portal.until(job, Job.State.RUNNING)

    # Running, and the first one ends before anybody can report it.
    cluster.wait_for_saved_jobs()
    for name in ("slurmctld", "gp1"):
        cluster.kill(name)
    killer.is_away()
    (first,) = portal.keeper.runner.jobs.glob(f"{found[0].pk}-*")
    (first / "work" / "go").touch()
    portal.until(found[0], Job.State.DONE)
    killer.restart()
    cluster.start_slurmd("gp1")
    cluster.wait_until(lambda: killer.jobs()["RUNNING"] == 1)

    # Being stopped.
    cluster.wait_for_saved_jobs()
    commands.arm("before", "scancel")
    jobs.stop(job_id=found[1].pk, user=portal.user, now=timezone.now())
    portal.works_until(commands.fired, "a stop")
    killer.is_away()
    portal.until(found[1], Job.State.STOPPED)
    killer.restart()

    # Completing: the controller has taken the cancel, and not stored it.
    portal.works_until(lambda: killer.jobs()["COMPLETING"], "the cancel")
    for name in ("slurmctld", "gp1"):
        cluster.kill(name)
    killer.is_away()
    killer.restart()
    cluster.start_slurmd("gp1")
    portal.works_until(lambda: not +killer.jobs(), "the end of the job")
    for job in found:
        log = portal.log_of(job)
        assert log.count("begun\n") == 1
    assert portal.log_of(found[0]).count("over\n") == 1
    made.refresh_from_db()
    assert (made.state, made.checked_in_at is not None) == (State.ACTIVE, True)

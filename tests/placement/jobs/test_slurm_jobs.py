"""Jobs on nodes of Slurm: what the portal's side sends, and from whom it hears."""

from datetime import timedelta

import pytest

from placement.jobs import bound_gpus
from placement.jobs import service as jobs
from placement.jobs.tick import job_tick
from placement.models import Job
from placement.planner.values.errors import LaunchInvalid
from placement.protocol.commands import SlurmPlace
from reservations.engines.bound_cards import bind_cards
from reservations.models import CoUser
from reservations.rules.lifecycle import State
from reservations.store.booking_facts import site_policy
from telemetry.models import Gpu, Node
from telemetry.rules.slurm_use import SlurmUse
from telemetry.slurm.cluster_view import SlurmGpuView, SlurmNodeView
from telemetry.slurm.service import record_view
from tests.factories import make_node, make_reservation
from tests.placement.stage import NOW, belief, fact, now_is, record
from tests.placement.stage_fixtures import orders, text_bodies

__all__ = ["orders", "text_bodies"]
pytestmark = pytest.mark.django_db


@pytest.fixture
def reservation(alice, settings):
    """A reservation of node gp1 of Slurm."""
    settings.SLURM_CLUSTER, settings.SLURM_BOOK = "lab", True
    settings.SLURM_SITE = "lab1"
    settings.SLURM_AGENT = "slurm-lab"
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    make_node("slurm-lab", last_seen_at=NOW)
    free = tuple(SlurmGpuView(n, "a100", SlurmUse.FREE) for n in range(2))
    record_view("lab", [SlurmNodeView("gp1", free)], version="22.05.8", now=NOW)
    gpus = list(Gpu.objects.filter(node__name="gp1"))
    return make_reservation(alice, gpus, start=NOW, state=State.ACTIVE)


def launch(user, reservation, **more) -> Job:
    known = {"name": "try", "kind": "script", "script": "#!/bin/sh\necho on\n"}
    words = {"user": user, "reservation_id": reservation.pk, "now": NOW}
    return jobs.launch(**(known | words | more))


def test_the_agent_gets_the_command_and_its_facts_are_believed(
    alice, reservation, orders
) -> None:
    job = launch(alice, reservation)
    assert job.node.name == "gp1"
    job_tick.tick(NOW)
    assert orders("gp1") == []
    (order,) = orders("slurm-lab")
    assert order.node == "slurm-lab"
    assert order.slurm == SlurmPlace(
        "gp1", f"gp_lab1_{reservation.pk}", whole_node=True
    )
    assert len(order.gpu_uuids) == 2
    # Neither the node itself nor another worker may speak for it.
    for stranger in ("gp1", "red"):
        record(fact(job, "started", at=NOW.timestamp()), now=NOW, node=stranger)
        assert now_is(job) == Job.State.STARTING
    record(fact(job, "started", at=NOW.timestamp()), now=NOW, node="slurm-lab")
    assert now_is(job) == Job.State.RUNNING
    jobs.stop(job_id=job.pk, user=alice, now=NOW)
    job_tick.tick(NOW)
    (stop,) = orders("slurm-lab")
    assert (stop.kind, stop.job) == ("stop", job.pk)


def test_a_job_that_waits_in_slurm_is_starting_and_its_holder_has_come(
    alice, reservation, orders
) -> None:
    job = launch(alice, reservation)
    job_tick.tick(NOW)
    said = belief(job)
    said["running"][0]["started_at"] = None
    for seconds in (5, 25, 45):
        now = NOW + timedelta(seconds=seconds)
        record(said, now=now, node="slurm-lab")
        assert job_tick.tick(now)["ordered_again"] == 0
    assert (now_is(job), job.started_at) == (Job.State.STARTING, None)
    reservation.refresh_from_db()
    assert reservation.checked_in_at is not None
    # If the agent loses it, it is ordered again.
    assert job_tick.tick(NOW + timedelta(seconds=70))["ordered_again"] == 1
    record(belief(job), now=NOW + timedelta(seconds=75), node="slurm-lab")
    assert now_is(job) == Job.State.RUNNING


def test_a_part_of_the_gpus_leaves_the_rest_of_the_node(
    alice, reservation, orders
) -> None:
    launch(alice, reservation, gpu_count=1)
    job_tick.tick(NOW)
    (order,) = orders("slurm-lab")
    assert order.slurm == SlurmPlace(
        "gp1", f"gp_lab1_{reservation.pk}", whole_node=False
    )


def test_without_an_agent_students_use_sbatch(alice, reservation, settings) -> None:
    settings.SLURM_AGENT = ""
    with pytest.raises(LaunchInvalid, match=f"--reservation=gp_lab1_{reservation.pk}"):
        launch(alice, reservation)
    assert not Job.objects.exists()


def test_an_agent_without_isolation_runs_no_scripts(
    alice, reservation, settings
) -> None:
    settings.ALLOW_UNISOLATED_SCRIPTS = False
    alice.unix_user = "alice"
    alice.save()
    with pytest.raises(jobs.ScriptsNotAllowed):
        launch(alice, reservation)
    Node.objects.filter(name="slurm-lab").update(isolation=Node.Isolation.WATCHED)
    assert launch(alice, reservation)


def test_a_co_user_without_a_unix_user_runs_nothing(
    alice, bob, reservation, settings
) -> None:
    settings.ALLOW_UNISOLATED_SCRIPTS = False
    CoUser.objects.create(reservation=reservation, user=bob, added_by=alice)
    recipe = {"kind": "recipe", "recipe": "burn-in", "script": ""}
    with pytest.raises(LaunchInvalid, match="as its owner's Unix user, and you"):
        launch(bob, reservation, **recipe)
    assert not Job.objects.exists()
    bob.unix_user = "bob"
    bob.save()
    assert launch(bob, reservation, **recipe)


def test_jobs_get_the_gpus_that_slurm_gave_them(alice, reservation, orders) -> None:
    first, second = (
        launch(alice, reservation, name=name, gpu_count=1) for name in ("a", "b")
    )
    job_tick.tick(NOW)
    first.refresh_from_db()
    second.refresh_from_db()
    one, two = first.gpu_ids[0], second.gpu_ids[0]
    assert one != two

    def show(*names: str, reservation_name: str = f"gp_lab1_{reservation.pk}") -> None:
        busy = [
            SlurmGpuView(
                n,
                "a100",
                SlurmUse.BUSY,
                job_id=n + 1,
                job_name=name,
                reservation=reservation_name,
            )
            for n, name in enumerate(names)
        ]
        view = SlurmNodeView("gp1", tuple(busy), cpus=2)
        record_view("lab", [view], version="26.05.5", now=NOW)

    def gpus() -> list[list[int]]:
        bind_cards(NOW, site_policy())
        first.refresh_from_db()
        second.refresh_from_db()
        return [first.gpu_ids, second.gpu_ids]

    names = (f"gp-{second.pk}-1-k", f"gp-{first.pk}-1-k")
    # A job of that name in another reservation, and one of another attempt.
    show(*names, reservation_name="gp_lab1_9")
    assert gpus() == [[one], [two]]
    show(*(name.replace("-1-k", "-2-k") for name in names))
    assert gpus() == [[one], [two]]
    show(*names)
    assert gpus() == [[two], [one]]


def test_jobs_follow_the_gpus_of_their_reservation(alice, bob, reservation) -> None:
    job = launch(alice, reservation, gpu_count=1)
    job_tick.tick(NOW)
    job.refresh_from_db()
    (gpu,) = job.gpu_ids
    bound_gpus.follow({gpu: 77}, [reservation.pk + 1])
    job.refresh_from_db()
    assert job.gpu_ids == [gpu]
    bound_gpus.follow({gpu: 77}, [reservation.pk])
    job.refresh_from_db()
    assert job.gpu_ids == [77]


def test_all_gpus_of_a_part_of_a_node_leave_the_rest(
    alice, reservation, orders
) -> None:
    free = tuple(SlurmGpuView(n, "a100", SlurmUse.FREE) for n in range(4))
    view = SlurmNodeView("gp1", free, cpus=2)
    record_view("lab", [view], version="26.05.5", now=NOW)
    launch(alice, reservation)
    job_tick.tick(NOW)
    (order,) = orders("slurm-lab")
    assert len(order.gpu_uuids) == 2
    assert order.slurm is not None
    assert order.slurm.whole_node is False

"""Plans on nodes of Slurm, from the offer to the command of the agent."""

from dataclasses import replace

import pytest
from django.utils import timezone

from placement.backfill.service import queue_for_gaps
from placement.jobs import service as jobs
from placement.jobs.tick import job_tick
from placement.models import Job
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.values.errors import LaunchInvalid
from placement.planner.values.plan import Plan
from placement.planner.values.workload import Workload
from placement.plans.available_gpus import offered, site_cards
from placement.plans.service import earliest_start, make_plans
from placement.rules.job_refusals import PlanElsewhere
from reservations.rules.lifecycle import State
from reservations.rules.window import unix
from telemetry.models import Gpu, SlurmCluster
from telemetry.rules.slurm_use import SlurmUse
from telemetry.slurm.cluster_view import SlurmGpuView, SlurmNodeView
from telemetry.slurm.service import record_view
from tests.factories import make_gpus, make_node, make_reservation
from tests.placement.lab import plan_on
from tests.placement.stage_fixtures import orders, text_bodies

__all__ = ["orders", "text_bodies"]
pytestmark = pytest.mark.django_db
FREE = tuple(SlurmGpuView(n, "h200", SlurmUse.FREE) for n in range(4))


def show(*gpus: SlurmGpuView, cpus: int | None = 2, **more: object) -> None:
    """Store what Slurm says about node gp1."""
    view = SlurmNodeView("gp1", gpus or FREE, cpus=cpus, **more)
    record_view("lab", [view], version="26.05.5", now=timezone.now())


@pytest.fixture
def cards(alice, settings) -> list[Gpu]:
    """The GPUs of node gp1 of Slurm, whose type is that of a card. Alice has a Unix
    user there."""
    settings.SLURM_CLUSTER, settings.SLURM_BOOK = "lab", True
    settings.SLURM_SITE, settings.SLURM_AGENT = "lab1", "slurm-lab"
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    alice.unix_user = "alice"
    alice.save()
    make_node("slurm-lab", last_seen_at=timezone.now())
    show()
    return list(Gpu.objects.filter(node__name="gp1").order_by("index"))


def offers(user, hours=1, **more):
    found = offered(user=user, at=None, hours=hours, now=timezone.now(), **more).offers
    return {offer.label: offer for offer in found}


def test_gpus_of_slurm_are_offered_where_their_card_is_known(
    cards, alice, bob, settings, redis_client
) -> None:
    first = offers(alice)["gp1:0"]
    assert (first.name, first.bookable, first.reason) == ("NVIDIA H200", True, "")
    assert first.free_bytes == first.memory_total_bytes == 141 * 10**9
    assert [card.name for card in site_cards()] == ["NVIDIA H200"]
    assert "no Unix user there" in offers(bob)["gp1:0"].reason

    # What a job and a reservation of others have is left out, and ours is not.
    until = unix(timezone.now()) + 1800
    busy = replace(FREE[0], use=SlurmUse.BUSY, until=until)
    show(busy, *FREE[1:], held=(("root_1", until + 4 * 3600, until + 6 * 3600, 3),))
    usable = {
        hours: [o.index for o in offers(alice, hours).values() if o.bookable]
        for hours in (1, 6)
    }
    assert usable == {1: [1, 2, 3], 6: [3]}
    show(held=(("gp_lab1_5", until, until + 3600, 4),))
    assert all(one.bookable for one in offers(alice, 3).values())
    # On a whole node one job is in the way of everything.
    show(busy, *FREE[1:], cpus=None)
    assert not any(one.bookable for one in offers(alice).values())

    show()
    SlurmCluster.objects.update(failing_since=timezone.now())
    assert {one.reason for one in offers(alice).values()} == {"Slurm does not answer"}

    # A type that is no card, a name for it, and a portal that starts no jobs there.
    show(*(replace(gpu, kind="a100") for gpu in FREE))
    assert offers(alice) == {}
    settings.SLURM_CARDS = {"a100": "NVIDIA A100-SXM4-80GB"}
    show(*(replace(gpu, kind="a100") for gpu in FREE))
    assert offers(alice)["gp1:0"].name == "NVIDIA A100-SXM4-80GB"
    settings.SLURM_AGENT = ""
    assert offers(alice) == {}


@pytest.mark.parametrize("wants", [{}, {"gpu_class": "h200 (Slurm lab)"}])
def test_a_job_for_gaps_hears_that_slurm_has_none(cards, alice, wants) -> None:
    job = {"name": "try", "kind": "recipe", "recipe": "burn-in"}
    Gpu.objects.exclude(node__name="gp1").update(retired=True)
    with pytest.raises(LaunchInvalid) as refused:
        queue_for_gaps(user=alice, job=job, now=timezone.now(), **wants)
    assert "no job runs in gaps there" in refused.value.fields["gpus"]


def plan_for(user, strategy: str) -> Plan:
    found = make_plans(
        spec=well_known_spec("gpt2"),
        workload=Workload(),
        offers=tuple(offers(user).values()),
        limits=PlanLimits(strategies=(strategy,)),
    )
    return found.plans[0]


def test_a_plan_starts_when_slurm_has_room_and_never_mixes_nodes(cards, alice) -> None:
    # Nodes of the portal are joined by a network, and that of Slurm is not.
    make_gpus(1, make_node("node-a"))
    plan = plan_for(alice, "ddp")
    assert plan.nodes == ("gp1",)
    now = timezone.now()
    start = earliest_start(plan=plan, at=None, hours=1, now=now)
    assert {one.gpu.node for one in start.gpus} == {"gp1"}
    until = unix(now) + 7200
    show(*(replace(gpu, use=SlurmUse.BUSY, until=until) for gpu in FREE))
    later = earliest_start(plan=plan, at=None, hours=1, now=now, same_gpus=True)
    assert unix(later.window.start) >= until
    # A whole node is free if all its GPUs are.
    show(*FREE[:3], replace(FREE[3], use=SlurmUse.BUSY, until=until), cpus=None)
    later = earliest_start(plan=plan, at=None, hours=1, now=now, same_gpus=True)
    assert unix(later.window.start) >= until


def test_a_plan_is_run_by_the_agent_also_on_other_cards(
    cards, alice, redis_client, orders
) -> None:
    kept = plan_on(alice, "ddp")
    number = len(kept.plan["shards"])
    now = timezone.now()
    made = make_reservation(alice, cards, start=now, state=State.ACTIVE)
    words = {"user": alice, "reservation_id": made.pk, "name": "try"}
    words |= {"kind": "script", "script": "#!/bin/sh\n", "launcher": "torchrun"}
    job = jobs.launch(**words, plan_id=kept.pk, now=now)
    job_tick.tick(now)
    (order,) = orders("slurm-lab")
    assert (order.job, order.slurm.node, len(order.gpu_uuids)) == (
        job.pk,
        "gp1",
        number,
    )
    assert order.slurm.reservation == f"gp_lab1_{made.pk}"
    Job.objects.all().delete()

    # Slurm chose other cards for a reservation of fewer GPUs. Their number counts.
    half = len(cards) // 2
    made.allocations.exclude(gpu__in=cards[half:]).update(live=False)
    assert number <= half
    jobs.launch(**words, plan_id=kept.pk, now=now)
    job_tick.tick(now)
    (order,) = orders("slurm-lab")
    assert len(order.gpu_uuids) == number
    assert set(order.gpu_uuids) <= {gpu.uuid for gpu in cards[half:]}
    made.allocations.exclude(gpu=cards[-1]).update(live=False)
    with pytest.raises(PlanElsewhere):
        jobs.launch(**words, plan_id=kept.pk, now=now)

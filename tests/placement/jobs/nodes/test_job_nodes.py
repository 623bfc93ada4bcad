"""Jobs over several nodes: commanded, reported, stopped and ended part by part."""

from datetime import timedelta

import pytest

from placement.jobs import job_broadcast
from placement.jobs import service as jobs
from placement.jobs.job_usage import spans_of
from placement.jobs.tick import job_retry, job_tick
from placement.models import Job, JobPart, StoredPlan
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.values.errors import LaunchInvalid
from placement.protocol.commands import OrderKind
from placement.protocol.job_lifecycle import JobState
from placement.rules.job_refusals import ScriptsNotAllowed
from reservations.rules.lifecycle import State
from telemetry.models import Node
from tests.factories import make_gpus, make_node, make_reservation
from tests.placement.planner.made import make_offer
from tests.placement.stage import NOW, after, belief, fact, record

pytestmark = pytest.mark.django_db


@pytest.fixture
def wide(alice, node):
    """A queued training on both Gpus of red and the one of blue."""
    from placement.planner.model.well_known import well_known_spec
    from placement.planner.search.planner import plan as make_plans
    from placement.planner.values.workload import Workload

    blue = make_node("blue", last_seen_at=NOW)
    gpus = make_gpus(2, node) + make_gpus(1, blue)
    offers = [
        make_offer(
            gpu.index,
            node=gpu.node.name,
            uuid=gpu.uuid,
            free_gib=2,
            network_bytes_per_second=1e9,
        )
        for gpu in gpus
    ]
    spec = well_known_spec("gpt2")
    limits = PlanLimits(beaten_too=True)
    made = make_plans(spec, Workload(precision="fp32"), offers, limits=limits)
    plan = next(one for one in made.plans if one.spans_nodes)
    stored = StoredPlan.objects.create(
        owner=alice, title="wide", spec=spec.to_json(), workload={}, plan=plan.to_json()
    )
    booked = make_reservation(alice, gpus, start=NOW, state=State.ACTIVE)
    return jobs.launch(
        user=alice,
        reservation_id=booked.pk,
        name="wide",
        kind="recipe",
        recipe="tiny-transformer",
        plan_id=stored.pk,
        retries=1,
        now=NOW,
    )


def states(job):
    job.refresh_from_db()
    found = dict(job.parts.values_list("node__name", "state"))
    return job.state, found["blue"], found["red"]


def met(job, orders):
    """Let the first node begin and report its address. Return both commands."""
    job_tick.tick(NOW)
    (first,) = orders("blue")
    assert orders("red") == []
    said = {"meeting_address": "10.0.0.7", "meeting_port": 29501, "pid": 77}
    record(fact(Job.objects.get(pk=job.pk), "started", **said), node="blue")
    assert states(job) == ("starting", "running", "queued")
    assert job_tick.tick(after(1))["joined"] == 1
    (second,) = orders("red")
    return first, second


def test_the_others_are_ordered_when_the_first_says_where_to_meet(wide, orders):
    first, second = met(wide, orders)
    assert (first.meeting.node_rank, first.meeting.counts) == (0, (1, 2))
    assert (first.meeting.address, first.meeting.port) == ("", 0)
    assert (second.meeting.address, second.meeting.port) == ("10.0.0.7", 29501)
    assert first.meeting.token == second.meeting.token != ""
    assert first.nonce != second.nonce and first.plan == second.plan
    assert (len(first.gpu_uuids), len(second.gpu_uuids)) == (1, 2)
    assert job_tick.tick(after(2))["joined"] == 0
    # A second command to a node without a report is the same attempt and rendezvous.
    job_tick.tick(after(23))
    (again,) = orders("red")
    assert again.meeting == second.meeting and again.nonce != second.nonce
    job = Job.objects.get(pk=wide.pk)
    record(fact(job, "started"), node="red")
    assert states(wide) == ("running", "running", "running")
    assert len(spans_of(Job.objects.get(pk=wide.pk), now=after(60))) == 3
    # The operator's address for a node has priority over its own report.
    Node.objects.filter(name="blue").update(address="blue.ib")
    Job.objects.filter(pk=wide.pk).update(told_end=None)
    job_tick.tick(after(24))
    assert [order.meeting.address for order in orders("red")] == ["blue.ib"]


@pytest.mark.once
def test_logs_go_by_node_and_only_from_where_it_runs(wide, orders, monkeypatch):
    met(wide, orders)
    sent = []
    monkeypatch.setattr(
        job_broadcast, "_send", lambda job, message: sent.append(message["part"])
    )
    line = {"job": wide.pk, "attempt": 1, "offset": 0, "bytes": 1, "data": "x"}
    gate = job_broadcast.LogGate()
    assert gate.publish("red", line) and gate.publish("blue", line)
    make_node("green")
    assert not gate.publish("green", line)
    assert sent == [1, 0]


def test_it_is_done_when_all_parts_are(wide, orders):
    met(wide, orders)
    job = Job.objects.get(pk=wide.pk)
    record(fact(job, "started"), node="red")
    record(fact(job, "exited", exit_code=0), node="red")
    assert states(wide) == ("running", "running", "done")
    record(fact(job, "exited", exit_code=0, last_lines=["bye"]), node="blue")
    assert states(wide) == ("done", "done", "done")
    assert Job.objects.get(pk=wide.pk).last_lines == ["bye"]
    told = list(wide.events.values_list("reason", flat=True))
    assert "red (ranks 1 to 2) done" in told


def test_one_that_fails_stops_the_others_and_gives_the_reason(wide, orders):
    met(wide, orders)
    job = Job.objects.get(pk=wide.pk)
    record(fact(job, "started"), node="red")
    line = "gpuportal: rank 2 ended by SIGKILL"
    record(fact(job, "exited", exit_code=1, last_lines=[line]), node="red")
    assert states(wide) == ("stopping", "running", "failed")
    job_tick.tick(after(2))
    stops = [order.kind for order in orders("blue")]
    assert stops == [OrderKind.STOP] and orders("red") == []
    record(fact(job, "exited", exit_code=0, stopped=True), node="blue")
    assert states(wide) == ("failed", "stopped", "failed")
    assert Job.objects.get(pk=wide.pk).reason == "red: rank 2 ended by SIGKILL"


def test_a_stop_before_the_others_were_ordered_ends_all(wide, orders, alice):
    job_tick.tick(NOW)
    orders("blue")
    jobs.stop(job_id=wide.pk, user=alice, now=after(1))
    job_tick.tick(after(1))
    assert states(wide) == ("stopping", "starting", "stopped")
    assert [order.kind for order in orders("blue")] == [OrderKind.STOP]
    assert orders("red") == []
    record(fact(Job.objects.get(pk=wide.pk), "exited", stopped=True), node="blue")
    assert states(wide) == ("stopped", "stopped", "stopped")
    assert Job.objects.get(pk=wide.pk).reason == "stopped by its owner"


def test_a_node_that_lost_its_part_loses_the_job_which_starts_again(wide, orders):
    met(wide, orders)
    job = Job.objects.get(pk=wide.pk)
    record(fact(job, "refused", code="expired", nonce="other"), node="red")
    assert states(wide)[2] == "starting"
    record(fact(job, "started", at=after(1).timestamp()), after(1), node="red")
    # red does not report it for 15 s. A report of blue does not count for red.
    for seconds in (3, 9, 16, 21):
        at = after(seconds)
        record(belief(job, at=at.timestamp()), at, node="blue")
        record(belief(at=at.timestamp()), at, node="red")
    assert states(wide) == ("stopping", "running", "lost")
    record(
        fact(job, "exited", exit_code=1, at=after(22).timestamp()), after(22), "blue"
    )
    assert states(wide) == ("lost", "failed", "lost")
    assert "red no longer has this job" in Job.objects.get(pk=wide.pk).reason
    Node.objects.update(last_seen_at=after(23))
    Node.objects.filter(name="red").update(last_seen_at=NOW - timedelta(hours=1))
    assert list(job_retry.due(after(23))) == []
    Node.objects.update(last_seen_at=after(23))
    assert job_tick.tick(after(23))["retried"] == 1
    again = Job.objects.get(resume_from=wide)
    assert [p.node.name for p in again.parts.all()] == ["blue", "red"]
    # Both nodes' parts of its checkpoint are requested before it starts.
    job_tick.tick(after(24))
    again.refresh_from_db()
    assert "waits for the checkpoint" in again.reason
    job_tick.tick(after(25))
    kinds = [order.kind for name in ("blue", "red") for order in orders(name)]
    assert kinds.count(OrderKind.CARRY) == 2 and OrderKind.START not in kinds


@pytest.mark.once
def test_a_refusal_by_one_node_fails_the_whole_in_its_words(wide, orders):
    _, second = met(wide, orders)
    job = Job.objects.get(pk=wide.pk)
    why = {"code": "recipe", "reason": "needs torch", "nonce": second.nonce}
    record(fact(job, "refused", **why), node="red")
    assert states(wide) == ("stopping", "running", "failed")
    assert Job.objects.get(pk=wide.pk).reason == "red (ranks 1 to 2): needs torch"
    # A fact of a node without a part of it is ignored.
    make_node("green")
    assert record(fact(job, "exited", exit_code=0), node="green") is False


def test_what_cannot_run_over_several_nodes_is_refused_in_words(wide, alice, settings):
    script = {"kind": "script", "script": "x", "plan_id": wide.plan_id, "now": NOW}
    given = {"user": alice, "reservation_id": wide.reservation_id, "name": "s"}
    for launcher, words in (("accelerate", "as many ranks"), ("python", "one process")):
        with pytest.raises(LaunchInvalid, match=words):
            jobs.launch(**given, **script, launcher=launcher)
    with pytest.raises(LaunchInvalid, match="several nodes"):
        jobs.launch(
            **given,
            kind="recipe",
            recipe="tiny-transformer",
            plan_id=wide.plan_id,
            may_move=True,
            now=NOW,
        )
    Node.objects.filter(name="blue").update(isolation="watched")
    alice.unix_user = "alice"
    alice.save()
    with pytest.raises(ScriptsNotAllowed, match="Jobs on red"):
        jobs.launch(**given, **script, launcher="torchrun")
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    made = jobs.launch(**given, **script, launcher="torchrun")
    assert made.parts.count() == 2 and JobPart.objects.count() == 4
    assert Job.objects.get(pk=made.pk).state == JobState.QUEUED

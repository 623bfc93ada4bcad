"""Moves on the Job's page, over the API, at the desk, and in the launch form."""

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from placement.jobs import queries as snapshots
from placement.jobs import service as jobs
from placement.models import Job, MoveDecision, PlacementPolicy
from placement.rules.rebalance_policy import (
    RebalanceAction,
    RebalancePolicy,
    RestartMode,
)
from reservations.models import AuditEntry
from reservations.rules.lifecycle import State
from tests.factories import make_reservation
from tests.placement.lab import make_lab, plan_on, send_frame, signed_in

pytestmark = pytest.mark.django_db
M = MoveDecision.State


@pytest.fixture
def reservation(alice, redis_client):
    gpus = make_lab()
    send_frame(redis_client)
    now = timezone.now()
    return make_reservation(
        alice, gpus, now, now + timedelta(hours=9), state=State.ACTIVE
    )


@pytest.fixture
def job(alice, reservation):
    stored = plan_on(alice, "single")
    made = jobs.launch(
        user=alice,
        reservation_id=reservation.pk,
        name="train",
        kind="recipe",
        recipe="tiny-transformer",
        plan_id=stored.pk,
        node=stored.plan["node"],
        now=timezone.now(),
    )
    Job.objects.filter(pk=made.pk).update(state="running", restart=RestartMode.FRESH)
    made.refresh_from_db()
    return made


@pytest.fixture
def proposal(job):
    now = timezone.now()
    return MoveDecision.objects.create(
        job=job,
        at=now,
        seen_at=now,
        cause="intruder",
        state=M.PROPOSED,
        reason="Someone else uses node-a:0; it can move to node-a:1.",
        plan=job.plan,
        from_gpus=["node-a:0"],
        to_gpus=["node-a:1"],
        gain_seconds=600.0,
        cost_seconds=90.0,
        step_seconds_now=2.0,
        step_seconds_new=1.0,
    )


def page(user, job):
    return signed_in(user).get(f"/jobs/{job.pk}/").content.decode()


@pytest.mark.once
def test_the_page_shows_the_proposal_and_what_a_yes_means(alice, job, proposal):
    text = page(alice, job)
    assert "can move to node-a:1" in text and 'id="move-accept"' in text
    assert "starts again from the beginning" in text
    assert "10 min for 1 min" in text


@pytest.mark.once
def test_without_a_proposal_the_box_is_hidden_and_the_log_teaches(alice, job):
    text = page(alice, job)
    assert 'id="job-proposal" hidden' in text
    assert "Not checked yet" in text


@pytest.mark.once
def test_who_may_look_but_not_stop_gets_no_buttons(job, proposal, bob):
    bob.memberships.update(is_head=True)
    text = page(bob, job)
    assert "can move to node-a:1" in text
    assert "move-accept" not in text and "move-allow" not in text


@pytest.mark.once
def test_a_job_without_a_plan_has_no_moves(alice, reservation):
    made = jobs.launch(
        user=alice,
        reservation_id=reservation.pk,
        name="plain",
        kind="recipe",
        recipe="burn-in",
        node="node-a",
        now=timezone.now(),
    )
    assert "panel-moves" not in page(alice, made)


def post(user, path, body=None):
    return signed_in(user).post(
        f"/api/v1/jobs/{path}", json.dumps(body or {}), content_type="application/json"
    )


@pytest.mark.once
def test_yes_over_the_api_is_kept_with_who_said_it(alice, job, proposal):
    got = post(alice, f"{job.pk}/moves/{proposal.pk}/accept")
    assert got.status_code == 200
    (move,) = got.json()["moves"]
    assert (move["state"], move["by"]) == ("accepted", "alice")
    assert got.json()["proposal"] is None
    again = post(alice, f"{job.pk}/moves/{proposal.pk}/decline")
    assert (again.status_code, again.json()["code"]) == (409, "move-gone")


@pytest.mark.once
def test_no_over_the_api(alice, job, proposal):
    got = post(alice, f"{job.pk}/moves/{proposal.pk}/decline")
    assert got.json()["moves"][0]["state"] == "declined"


@pytest.mark.once
def test_a_job_that_may_not_start_again_cannot_be_moved(alice, job, proposal):
    got = post(alice, f"{job.pk}/moves", {"may_move": True, "restart": ""})
    assert got.json()["proposal"]["can_accept"] is False
    got = post(alice, f"{job.pk}/moves/{proposal.pk}/accept")
    assert (got.status_code, got.json()["code"]) == (409, "restart-not-allowed")
    got = post(alice, f"{job.pk}/moves", {"may_move": True, "restart": "magic"})
    assert got.status_code == 422


@pytest.mark.once
def test_bob_and_carol_are_told_nothing_and_decide_nothing(job, proposal, bob, carol):
    for user in (bob, carol):
        assert signed_in(user).get(f"/api/v1/jobs/{job.pk}/moves").status_code == 404
        assert post(user, f"{job.pk}/moves/{proposal.pk}/accept").status_code == 404
        assert post(user, f"{job.pk}/moves", {"may_move": True}).status_code == 404
    proposal.refresh_from_db()
    assert proposal.state == M.PROPOSED


@pytest.mark.once
def test_the_operator_edits_the_policy_with_a_reason(omar):
    PlacementPolicy.current()
    client = signed_in(omar)
    path = "/admin/placement/placementpolicy/1/change/"
    shown = client.get(path).context["adminform"].form.initial
    fields = {name: value for name, value in shown.items() if value is not None}
    fields |= {"look_again_seconds": 30, "when_faster": "never"}
    fields |= {"when_in_trouble": "do", "margin_ratio": 0.5}
    assert client.post(path, fields).status_code == 200
    got = client.post(path, {**fields, "reason": "exams"})
    assert got.status_code == 302, got.context["adminform"].form.errors
    rules = PlacementPolicy.current().value_of(RebalancePolicy)
    assert (rules.when_faster, rules.when_in_trouble) == (
        RebalanceAction.NEVER,
        RebalanceAction.DO,
    )
    assert PlacementPolicy.history.count() >= 1
    entry = AuditEntry.objects.get(verb="admin.placementpolicy.changed")
    assert entry.reason == "exams"


@pytest.mark.once
def test_the_operator_looks_at_decisions_and_changes_none(omar, proposal):
    client = signed_in(omar)
    assert client.get("/admin/placement/movedecision/").status_code == 200
    path = f"/admin/placement/movedecision/{proposal.pk}/"
    assert client.post(path + "change/", {"state": "moved"}).status_code == 403


def test_the_launch_form_asks_what_may_happen_to_a_job_with_a_plan(alice, reservation):
    stored = plan_on(alice, "single")
    client = signed_in(alice)
    form = client.get(f"/jobs/new/?plan={stored.pk}&reservation={reservation.pk}")
    assert 'name="restart"' in form.content.decode()
    client.post(
        "/jobs/new/",
        {
            "reservation": reservation.pk,
            "name": "x",
            "what": "tiny-transformer",
            "plan": stored.pk,
            "node": stored.plan["node"],
            "may_move": "on",
            "restart": "fresh",
        },
    )
    made = Job.objects.get(name="x")
    assert (made.may_move, made.restart) == (True, RestartMode.FRESH)


def test_net_words_are_for_people(proposal):
    proposal.realised_gain_seconds, proposal.realised_cost_seconds = 30.0, 90.0
    proposal.save()
    facts = snapshots.job_moves(proposal.job)[0]
    assert (facts["predicted"], facts["realised"]) == ("10 min for 1 min", "−1 min")


def test_the_list_of_jobs_says_where_a_move_waits_for_an_answer(alice, proposal):
    client = signed_in(alice)
    assert "a move is proposed" in client.get("/jobs/").content.decode()
    MoveDecision.objects.update(state=M.DECLINED)
    assert "a move is proposed" not in client.get("/jobs/").content.decode()

"""The API names the next best Plan where a recipe cannot run one, and takes it."""

import time

import pytest
from django.utils import timezone

from placement.models import Job, StoredPlan
from placement.planner.values.strategies import STRATEGIES, TITLES
from placement.plans.service import forget_old_plans
from reservations.rules.lifecycle import State
from tests.factories import make_reservation
from tests.placement.lab import make_lab, plan_on, send_frame, signed_in

pytestmark = pytest.mark.django_db
FILES = {"model": "org/tiny", "data": "/srv/rows.txt"}


@pytest.fixture
def post(alice, redis_client, settings):
    """Return a function that launches a fine-tune of a model that cannot be cut."""
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    gpus = make_lab()
    # Fresh for as long as the test takes.
    send_frame(redis_client, at=time.time() + 600)
    plan = plan_on(alice, "pipeline", "bloom")
    booked = make_reservation(alice, gpus, start=timezone.now(), state=State.ACTIVE)
    body = {
        "reservation": booked.pk,
        "name": "try",
        "recipe": "fine-tune",
        "recipe_settings": FILES,
        "plan": plan.pk,
    }
    program = signed_in(alice)

    def sent(**changes):
        return program.post(
            "/api/v1/jobs", body | changes, content_type="application/json"
        )

    return sent


@pytest.mark.once
def test_a_refusal_names_the_next_best_plan_and_its_strategy_is_taken(post):
    refused = post()
    problem = refused.json()
    assert (refused.status_code, problem["code"]) == (409, "strategy-not-runnable")
    strategy = problem["numbers"]["next_strategy"]
    assert STRATEGIES[strategy].keeps_model_whole
    assert problem["numbers"]["next_title"] == TITLES[strategy]
    assert "cannot cut models of the family bloom into stages" in problem["detail"]
    assert problem["detail"].endswith(f"that it can run is: {TITLES[strategy]}.")
    assert not Job.objects.exists() and StoredPlan.objects.count() == 1
    taken = post(strategy=strategy)
    assert taken.status_code == 201, taken.json()
    job = Job.objects.get()
    assert job.recipe_settings["strategy"] == strategy
    assert job.plan.plan["strategy"] == strategy and "stages" not in job.plan.title


@pytest.mark.once
def test_a_strategy_that_does_not_fit_is_refused_at_its_field(post):
    for strategy, words in (
        ("pipeline", "cannot cut models of the family bloom into stages"),
        ("hsdp", "no plan of strategy hsdp"),
        ("x" * 5000, "Choose one of: "),
    ):
        refused = post(strategy=strategy)
        assert refused.status_code in (409, 422), strategy
        assert words in str(refused.json()), strategy
    for changes in ({"plan": None}, {"plan": 10**6}, {"reservation": 10**6}):
        refused = post(strategy="fsdp", **changes)
        assert 400 <= refused.status_code < 500, changes
    refused = post(strategy="fsdp", recipe_settings={"model": "org/tiny"})
    assert "recipe_settings.data" in refused.json()["fields"]
    refused = post(strategy="fsdp", reservation=None, backfill={})
    assert refused.json()["fields"].keys() == {"strategy"}
    assert not Job.objects.exists() and StoredPlan.objects.count() == 1


def test_without_any_plan_that_runs_the_refusal_names_none(post, alice):
    plan = StoredPlan.objects.get()
    # More than these GPUs have.
    plan.workload |= {"batch": 2**20, "microbatch": 2**20}
    plan.save()
    problem = post().json()
    assert problem["code"] == "strategy-not-runnable"
    forget_old_plans(alice)
    assert StoredPlan.objects.count() == 1

"""Where a call goes, and which columns and queries that needs."""

from datetime import timedelta

import pytest
from django.utils import timezone

from placement.language_models.callable_model import callable_model
from placement.models import Endpoint, Job, LanguageModelEndpoint
from placement.protocol.call_refusal import CallRefused
from placement.serving.call_access import CallTarget, call_target
from reservations.rules.errors import NotFound
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_node, make_reservation

pytestmark = pytest.mark.django_db


@pytest.fixture
def made_job(alice):
    """A function that makes a running job of Alice."""
    node = make_node("node1")
    gpus = make_gpus(1, node)
    held = make_reservation(alice, gpus, state=State.ACTIVE)

    def make(kind, state=Job.State.RUNNING):
        return Job.objects.create(
            reservation=held,
            owner=alice,
            name="s",
            kind=kind,
            recipe=kind,
            node=node,
            state=state,
            attempt=2,
        )

    make.gpu = gpus[0]
    return make


def test_a_call_follows_the_models_to_the_latest_place_that_took_over(
    made_job, alice, bob, django_assert_num_queries
):
    def endpoint(follows=None, took_over=None, state=Job.State.RUNNING):
        return Endpoint.objects.create(
            job=made_job(Job.Kind.SERVE, state),
            gpu=made_job.gpu,
            memory_bytes=1,
            follows=follows,
            took_over_at=took_over,
        )

    now = timezone.now()
    first = endpoint()
    endpoint(first)  # has not taken over yet
    with django_assert_num_queries(1):
        target = call_target(alice, first.job_id, "m")
    job = first.job
    assert target == CallTarget("node1", job.pk, 2, alice.pk, job.key)
    endpoint(first, now - timedelta(hours=1))
    second = endpoint(first, now)
    third = endpoint(second, now)
    assert call_target(alice, first.job_id, "m").job == third.job_id
    assert call_target(alice, third.job_id, "m").job == third.job_id
    for number in (first.job_id, 10**6):
        with pytest.raises(NotFound):
            call_target(bob, number, "m")
    over = endpoint(third, now, state=Job.State.STOPPED)
    with pytest.raises(CallRefused) as error:
        call_target(alice, first.job_id, "m")
    assert error.value.code == "endpoint-over" and str(over.job_id) in str(error.value)


def test_a_language_model_of_another_person_is_called_with_the_owners_access(
    made_job, alice, bob
):
    job = made_job(Job.Kind.TEXT)
    row = LanguageModelEndpoint.objects.create(
        job=job,
        name="m",
        gpu_uuids=[],
        weight_bytes=0,
        cache_bytes=0,
        total_bytes=0,
    )
    now = timezone.now()
    own = callable_model(alice, job.pk, now)
    assert (own.folder, own.owner) == (f"{job.pk}-2-{job.key}", "alice")
    assert (own.access.node, own.access.login) == ("node1", "alice")
    assert own.started_at == job.created_at
    with pytest.raises(NotFound):
        callable_model(bob, job.pk, now)
    row.callers = "anybody"
    row.save()
    shared = callable_model(bob, job.pk, now)
    assert (shared.access.login, shared.access.user_pk) == ("alice", bob.pk)

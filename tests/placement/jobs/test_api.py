"""Jobs over the JSON API."""

import pytest
from django.test import Client
from django.utils import timezone

from placement.jobs.nodes import log_store
from placement.models import Job
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_node, make_reservation

pytestmark = pytest.mark.django_db
NOW = timezone.now()


@pytest.fixture
def reservation(alice):
    return make_reservation(
        alice, make_gpus(1, make_node("red")), start=NOW, state=State.ACTIVE
    )


def signed_in(user):
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def post(client, path, body=None):
    return client.post(f"/api/v1{path}", body or {}, content_type="application/json")


@pytest.fixture
def program(alice):
    return signed_in(alice)


@pytest.fixture
def job(program, reservation):
    answer = post(
        program,
        "/jobs",
        {"reservation": reservation.pk, "name": "try", "recipe": "burn-in"},
    )
    assert answer.status_code == 201, answer.content
    return Job.objects.get(pk=answer.json()["id"])


@pytest.mark.once
def test_a_job_is_launched_looked_at_and_stopped(program, job):
    one = program.get(f"/api/v1/jobs/{job.pk}").json()
    assert (one["state"], one["owner"], one["node"]) == ("queued", "alice", "red")
    assert [step["word"] for step in one["steps"] if step["current"]] == ["queued"]
    assert [event["new"] for event in one["events"]] == ["queued"]
    stopped = post(program, f"/jobs/{job.pk}/stop", {"reason": "wrong one"}).json()
    assert (stopped["state"], stopped["reason"]) == ("stopped", "wrong one")
    again = post(program, f"/jobs/{job.pk}/stop")
    assert (again.status_code, again.json()["code"]) == (409, "job-over")


def test_a_refusal_is_a_problem_with_its_code_and_words(program, reservation):
    answer = post(
        program,
        "/jobs",
        {"reservation": reservation.pk, "name": "x", "kind": "script", "script": "id"},
    )
    assert (answer.status_code, answer.json()["code"]) == (409, "scripts-not-allowed")
    assert "Only ready recipes" in answer.json()["detail"]


def test_wrong_fields_are_named(program, reservation):
    answer = post(
        program,
        "/jobs",
        {
            "reservation": reservation.pk,
            "name": "",
            "recipe": "burn-in",
            "recipe_settings": {"seconds": -5},
        },
    )
    assert answer.status_code == 422
    assert set(answer.json()["fields"]) == {"name", "recipe_settings.seconds"}


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"recipe": "tiny-transformer"}, "this one runs the recipe tiny-transformer"),
        ({"kind": "script", "script": "true"}, "this one runs a script"),
    ],
)
def test_a_checkpoint_of_another_program_is_refused_at_the_field(
    program, job, reservation, settings, what, words
):
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    Job.objects.update(state="failed", started_at=NOW, ended_at=NOW)
    body = {"reservation": reservation.pk, "name": "next", "resume_from": job.pk}
    answer = post(program, "/jobs", body | what)
    assert answer.status_code == 422, answer.content
    why = str(answer.json()["fields"]["resume_from"])
    assert f"job #{job.pk} ran the recipe burn-in, and {words}" in why
    same = post(program, "/jobs", body | {"recipe": "burn-in"})
    assert same.status_code == 201, same.content
    assert Job.objects.get(pk=same.json()["id"]).resume_from == job


def test_an_array_is_launched_looked_at_and_stopped(program, bob, reservation):
    body = {
        "reservation": reservation.pk,
        "name": "all",
        "recipe": "burn-in",
        "sweep": {"seconds": [1, 2]},
        "retries": 1,
    }
    made = post(program, "/jobs/arrays", body)
    assert made.status_code == 201, made.content
    array = made.json()["array"]
    assert [row["parameters"] for row in made.json()["jobs"]] == [
        {"seconds": 1},
        {"seconds": 2},
    ]
    assert program.get(f"/api/v1/jobs/arrays/{array}").json()["name"] == "all"
    assert signed_in(bob).get(f"/api/v1/jobs/arrays/{array}").status_code == 404
    assert post(program, f"/jobs/arrays/{array}/stop").json()["stopped"] == 2
    wrong = post(program, "/jobs/arrays", body | {"sweep": {"seconds": [1, 1]}})
    assert wrong.status_code == 422 and "sweep" in wrong.json()["fields"]


@pytest.mark.once
def test_others_see_nothing_of_it(bob, carol, job, reservation):
    for other in (bob, carol):
        client = signed_in(other)
        assert client.get("/api/v1/jobs").json() == {
            "count": 0,
            "jobs": [],
            "next": None,
        }
        for path in (
            f"/jobs/{job.pk}",
            f"/jobs/{job.pk}/log",
            f"/jobs/{job.pk}/numbers",
        ):
            assert client.get(f"/api/v1{path}").status_code == 404
        assert post(client, f"/jobs/{job.pk}/stop").status_code == 404
        body = {"reservation": reservation.pk, "name": "x", "recipe": "burn-in"}
        assert post(client, "/jobs", body).status_code == 404


@pytest.mark.once
def test_numbers_and_words_out_of_bounds_are_named(program, job):
    far = program.get("/api/v1/jobs?reservation=99999999999999999999")
    assert far.status_code == 422
    for reason in ("x" * 401, "nul\0", "\u202etxet"):
        answer = post(program, f"/jobs/{job.pk}/stop", {"reason": reason})
        assert "reason" in answer.json()["fields"], reason


def test_who_is_signed_out_is_refused(job):
    assert Client().get("/api/v1/jobs").status_code == 401


@pytest.mark.once
def test_the_log_is_read_by_bytes(program, job):
    Job.objects.filter(pk=job.pk).update(attempt=1)
    job.attempt = 1
    log_store.append(job, attempt=1, offset=0, data=b"step=1 loss=2\nstep=2 loss=1\n")
    answer = program.get(f"/api/v1/jobs/{job.pk}/log?offset=-14").json()
    assert (answer["offset"], answer["data"], answer["size"]) == (
        14,
        "step=2 loss=1\n",
        28,
    )
    rows = program.get(f"/api/v1/jobs/{job.pk}/numbers").json()["rows"]
    assert [row["loss"] for row in rows] == [2, 1]


@pytest.mark.once
def test_the_list_asks_the_database_as_often_for_many_as_for_one(
    program, job, alice, django_assert_max_num_queries
):
    def count():
        with django_assert_max_num_queries(12) as seen:
            program.get("/api/v1/jobs")
        return len(seen)

    one = count()
    for number in range(10):
        Job.objects.create(
            reservation=job.reservation,
            owner=alice,
            node=job.node,
            name=f"more {number}",
            kind="recipe",
            recipe="burn-in",
        )
    assert count() == one

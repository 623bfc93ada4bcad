"""From errors of the domain, and outages, to answers."""

from dataclasses import fields
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from django.db import OperationalError
from django.http import HttpResponse
from django.test import RequestFactory

from gpuportal.http import problems
from gpuportal.http.middleware import ProblemMiddleware
from placement.planner.values import errors as placement
from placement.protocol.node_refusals import LogConflict
from reservations.rules import errors as reservations
from telemetry.protocol import errors as telemetry
from telemetry.web.error_answers import problem_of, problem_response

TAKEN = reservations.GpuTaken(
    gpu="atlas:0",
    start=datetime(2026, 3, 2, 9, tzinfo=UTC),
    end=datetime(2026, 3, 2, 11, tzinfo=UTC),
    user="Bob",
)


def middleware() -> ProblemMiddleware:
    return ProblemMiddleware(lambda _request: HttpResponse("never"))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TAKEN, 409),
        (LogConflict(5), 409),
        (reservations.NotFound(what="job #7"), 404),
        (placement.WorkloadInvalid({"batch": "must be positive"}), 422),
        (telemetry.NodeUnknown(node="atlas"), 404),
        (OperationalError("gone"), 503),
        (ZeroDivisionError(), None),
        (placement.PlanInvalid(["a layer twice"]), None),
    ],
)
def test_each_kind_of_error_has_its_status(error, status):
    refusal = problems.refusal_of(error)
    assert (refusal and refusal.status) == status


def test_a_refusal_carries_its_numbers_and_the_next_slot():
    TAKEN.next_slot = SimpleNamespace(
        gpu_ids=(1, 2),
        start=datetime(2026, 3, 2, 11, tzinfo=UTC),
        end=datetime(2026, 3, 2, 12, tzinfo=UTC),
    )
    details = problem_of(TAKEN)
    assert details["code"] == "gpu-taken"
    assert details["status"] == 409
    assert "atlas:0 is taken by Bob" in str(details["detail"])
    assert details["next_slot"] == {
        "gpu_ids": [1, 2],
        "start": "2026-03-02T11:00:00Z",
        "end": "2026-03-02T12:00:00Z",
    }
    numbers = details["numbers"]
    assert isinstance(numbers, dict)
    assert set(numbers) == {f.name for f in fields(TAKEN) if f.init}


def test_a_bad_form_names_its_fields():
    response = problem_response(placement.LaunchInvalid({"name": "is too long"}))
    assert response.status_code == 422
    assert response["Content-Type"] == "application/problem+json"
    assert b'"fields": {"name": "is too long"}' in response.content


def test_a_crash_is_never_dressed_up_as_a_refusal():
    with pytest.raises(LookupError):
        problem_of(placement.PlanInvalid(["a layer twice"]))
    request = RequestFactory().get("/")
    assert middleware().process_exception(request, KeyError("x")) is None


def test_a_program_gets_problem_details_and_a_retry_hint_in_an_outage():
    request = RequestFactory().get("/api/v1/calendar")
    response = middleware().process_exception(request, OperationalError("10.1.2.3"))
    assert response is not None
    assert response.status_code == 503
    assert response["Retry-After"] == "5"
    assert response["Content-Type"] == "application/problem+json"
    assert b"10.1.2.3" not in response.content


def test_a_person_gets_a_page_without_the_database_in_an_outage():
    request = RequestFactory().get("/", headers={"accept": "text/html"})
    response = middleware().process_exception(request, OperationalError("10.1.2.3"))
    assert response is not None
    assert response.status_code == 503
    assert b"Back in a moment" in response.content
    assert b"10.1.2.3" not in response.content


@pytest.mark.django_db
def test_a_signed_in_page_answers_503_while_the_database_is_gone(
    client, alice, monkeypatch
):
    client.force_login(alice)

    def gone(*_args, **_kwargs):
        raise OperationalError("server closed the connection")

    with monkeypatch.context() as patch:
        patch.setattr("django.db.backends.utils.CursorWrapper.execute", gone)
        for path in ("/", "/me/", "/search?q=x"):
            answer = client.get(path, headers={"accept": "text/html"})
            assert answer.status_code == 503, path
            assert answer["Retry-After"] == "5"
    # Without a restart, as soon as the database is back.
    assert client.get("/me/").status_code == 200


@pytest.mark.django_db
def test_a_refusal_that_a_page_let_through_is_a_page_with_its_sentence(client, alice):
    request = RequestFactory().get("/calendar/", headers={"accept": "text/html"})
    request.user = alice
    response = middleware().process_exception(request, TAKEN)
    assert response is not None
    assert response.status_code == 409
    assert b"atlas:0 is taken by Bob" in response.content


def test_a_number_that_no_column_can_hold_is_no_crash_of_the_api(client, alice) -> None:
    client.force_login(alice)
    for method, path in (
        ("post", "jobs/arrays/{}/stop"),
        ("get", "serve/{}"),
        ("delete", "serve/{}/models/m"),
        ("post", "reservations/{}/cancel"),
        ("delete", "reservations/1/co-users/{}"),
    ):
        answer = getattr(client, method)("/api/v1/" + path.format("9" * 30))
        assert answer.status_code in (400, 403, 404), path

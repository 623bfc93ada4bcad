"""One scope for every effect: each operation of the API with each set of scopes."""

import re
from itertools import combinations

import pytest
from django.utils import timezone

from gpuportal.api import api
from placement.models import Job
from reservations.accounts.api_tokens import create_token
from reservations.models import ApiToken, Reservation
from tests.reservations.calling import Caller

SCOPES = ("read", "book", "job")
OPERATIONS = sorted(
    (method.upper(), path.removeprefix("/api/v1"))
    for path, methods in api.get_openapi_schema()["paths"].items()
    for method in methods
)
ALWAYS_BOTH = {
    ("POST", "/jobs/{job_id}/moves/{move_id}/accept"),
    ("POST", "/serve/{job_id}/move"),
    # Without a body: hours from now would be booked.
    ("POST", "/serve"),
    ("POST", "/serve/text"),
    ("POST", "/workspaces/book"),
}
RUNS = ("/jobs", "/plans", "/models", "/serve", "/ssh-", "/tokens", "/workspaces")


def wanted(method: str, path: str) -> set[str]:
    """Return the scopes of an operation with an empty body."""
    if method == "GET":
        return {"read"}
    if (method, path) in ALWAYS_BOTH:
        return {"book", "job"}
    return {"job"} if path.startswith(RUNS) else {"book"}


@pytest.fixture
def call_with(alice):
    def make(*scopes: str) -> Caller:
        _, text = create_token(
            user=alice, label="t", scopes=scopes, days=1, now=timezone.now()
        )
        return Caller(token=text)

    return make


@pytest.mark.once
@pytest.mark.parametrize(
    "held", [s for n in (1, 2, 3) for s in combinations(SCOPES, n)]
)
def test_every_operation_needs_its_scopes_and_no_other(call_with, held):
    call = call_with(*held)
    assert len(OPERATIONS) >= 75
    for method, path in OPERATIONS:
        address = re.sub(r"\{\w+\}", "987654", path)
        answer = call(method, address)
        lacks = wanted(method, path) - set(held)
        refused = answer.status_code == 403 and "lacks the scope" in str(answer.body)
        assert refused is bool(lacks), (method, path, held, answer.body)


SECOND = [
    ("/serve", {"file": 1, "hours": 2}, "book"),
    ("/serve", {"file": 1, "reservation": 7}, "book"),  # may move, by default
    ("/serve", {"file": 1, "reservation": 7, "may_move": "yes"}, "book"),
    ("/serve", {"file": 1, "reservation": 7, "hours": 2, "may_move": False}, "book"),
    ("/serve", {"file": 1, "reservation": 7, "may_move": False}, ""),
    ("/serve/text", {"model": "gpt2", "hours": 2}, "book"),
    ("/serve/text", {"model": "gpt2", "reservation": 7}, ""),
    ("/jobs", {"name": "x", "backfill": {}}, "book"),
    ("/jobs", {"name": "x", "backfill": False}, "book"),
    ("/jobs", {"name": "x", "reservation": 7, "may_move": True}, "book"),
    ("/jobs", {"name": "x", "reservation": 7, "may_move": "1"}, "book"),
    ("/jobs", {"name": "x", "reservation": 7}, ""),
    ("/jobs/arrays", {"name": "x", "backfill": {}, "sweep": {}}, "book"),
    ("/jobs/arrays", {"name": "x", "reservation": 7, "sweep": {}}, ""),
    ("/jobs/5/moves", {"may_move": True}, "book"),
    ("/jobs/5/moves", {"may_move": False}, ""),
    ("/waiting", {"hours": 1, "job": {"name": "x"}}, "job"),
    ("/waiting", {"hours": 1}, ""),
]


@pytest.mark.parametrize(("path", "body", "second"), SECOND)
def test_a_body_with_a_second_effect_needs_a_second_scope(
    call_with, path, body, second
):
    first = "book" if path == "/waiting" else "job"
    answer = call_with(first)("POST", path, body)
    assert (answer.status_code == 403) is bool(second), answer.body
    if second:
        assert f"lacks the scope “{second}”" in answer.body["detail"]
        assert "This request needs “" in answer.body["detail"]
        both = call_with("job", "book")("POST", path, body)
        assert "scope" not in str(both.body)
    assert not Reservation.objects.exists() and not Job.objects.exists()
    assert ApiToken.objects.exists()

"""The API and its schema: schemathesis sends valid and invalid requests.

As anonymous, student, head of a group and operator: no answer of 5xx, no status that
the schema does not name, no answer of another form. The requests are the same every
time, and every role sends the first ones of the same list, because to make a request
takes five times as long as to answer it. For a longer run, with its counts:
``FUZZ_EXAMPLES=200 pytest -rP tests/gpuportal/http/test_openapi.py``, with another
``FUZZ_SEED`` for other requests.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
import schemathesis
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, connection
from django.utils import timezone
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.core.failures import FailureGroup

from gpuportal.api import api
from placement.models import Job
from placement.plans import api as api_plans
from placement.serving import api as api_serve
from reservations.accounts.api_tokens import create_token
from reservations.models import Membership
from reservations.rules.lifecycle import State
from tests.answers import closed_components
from tests.factories import make_reservation
from tests.placement.lab import make_lab, send_frame, signed_in

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
SEED = int(os.environ.get("FUZZ_SEED", "20261123"))
USUAL = {"anonymous": 1, "student": 3, "head": 1, "operator": 2}
if connection.vendor == "postgresql":
    USUAL = {"student": 1, "operator": 1}
"""Requests of each kind, valid and not, for each of the 75 operations. Fewer go to
PostgreSQL: the values that only a database refuses are in `test_plain_errors`."""
SLOW = {("POST", "/api/v1/models"), ("POST", "/api/v1/serve/files")}
"""A parser's process reads each file that is sent."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
schemathesis.openapi.format("binary", st.binary(max_size=64))


@pytest.fixture
def one_connection() -> Iterator[None]:
    """Keep the connection between requests, as Django's own test client does."""
    ends = (request_started, request_finished)
    for one in ends:
        one.disconnect(close_old_connections)
    yield
    for one in ends:
        one.connect(close_old_connections)


@cache
def requests() -> list[tuple[tuple[str, str], list[list[Case]]]]:
    """Return each operation, and its requests of each kind, valid and not."""
    django = WSGIHandler()
    shown = json.loads(json.dumps(api.get_openapi_schema(), default=str))
    shown["components"] = closed_components()
    told = json.dumps(shown).encode()

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if environ["PATH_INFO"] == "/openapi.json":
            start_response("200 OK", [("Content-Type", "application/json")])
            return [told]
        return django(environ, start_response)

    schema = schemathesis.openapi.from_wsgi("/openapi.json", app)
    found = []
    for one in (result.ok() for result in schema.get_all_operations()):
        label = (one.method.upper(), one.path)
        most = EXAMPLES or max(USUAL.values())
        count = min(most, 2) if label in SLOW else most
        found.append((label, [made(cases(one, mode), count) for mode in modes(one)]))
    return found


@pytest.fixture
def world(alice, bob, carol, omar, redis_client, settings, monkeypatch):
    """A lab with something of each kind, and without rate limits."""
    settings.BOOK_RATE_PER_MINUTE = 10**9
    for module in (api_plans, api_serve):
        monkeypatch.setattr(module, "UPLOADS_PER_MINUTE", 10**9)
    monkeypatch.setattr(api_plans, "PLANS_PER_MINUTE", 10**9)
    monkeypatch.setattr("reservations.web.api_parts.PREVIEWS_PER_MINUTE", 10**9)
    Membership.objects.filter(user=bob).update(is_head=True)
    gpus = make_lab()
    send_frame(redis_client)
    now = timezone.now()
    for number, user in enumerate((alice, bob, carol)):
        begin = now - timedelta(hours=1)
        row = make_reservation(
            user,
            [gpus[number]],
            state=State.ACTIVE,
            start=begin,
            end=begin + timedelta(hours=5),
        )
        Job.objects.create(
            reservation=row,
            owner=user,
            node=gpus[number].node,
            name="try",
            kind="recipe",
            recipe="burn-in",
            attempt=1,
            state="running",
            ordered_at=now,
            started_at=now,
        )
    return {"student": alice, "head": bob, "operator": omar}


def credentials(role: str, world: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the headers and cookies of a role: students and heads use a token."""
    if role == "anonymous":
        return {"headers": {}, "cookies": {}}
    if role == "operator":
        key = signed_in(world[role]).cookies["sessionid"].value
        token = "c" * 32
        cookies = {"sessionid": key, "csrftoken": token}
        return {"headers": {"X-CSRFToken": token}, "cookies": cookies}
    _, text = create_token(
        user=world[role],
        label="t",
        scopes=["read", "book", "job"],
        days=1,
        now=timezone.now(),
    )
    return {"headers": {"Authorization": f"Bearer {text}"}, "cookies": {}}


def cases(operation: Any, mode: GenerationMode) -> st.SearchStrategy[Case]:
    """Return requests of one operation. Half of the numbers in paths exist."""

    def there(case: Case, small: int) -> Case:
        # The client in the tests does not decompress answers.
        case.headers["Accept-Encoding"] = "identity"
        # A made-up token would hide the session, which the operator uses.
        case.headers.pop("Authorization", None)
        if small:
            for name, value in dict(case.path_parameters or {}).items():
                if isinstance(value, int):
                    case.path_parameters[name] = small
        return case

    return st.builds(there, operation.as_strategy(mode), st.sampled_from([0, 1, 2, 3]))


def modes(operation: Any) -> Iterator[GenerationMode]:
    yield GenerationMode.POSITIVE
    if any(True for _ in operation.iter_parameters()) or operation.body:
        yield GenerationMode.NEGATIVE


def made(strategy: st.SearchStrategy[Case], examples: int) -> list[Case]:
    """Return so many requests, the same ones every time."""
    found: list[Case] = []
    bounded = settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )

    def keep(case: Case) -> None:
        found.append(case)

    seed(SEED)(bounded(given(case=strategy)(keep)))()
    return found


@pytest.mark.slow
@pytest.mark.timeout(3600 if EXAMPLES else 600)
@pytest.mark.parametrize("role", USUAL)
def test_every_answer_is_one_that_the_schema_names(
    transactional_db, one_connection, world, role
):
    known = credentials(role, world)
    count, broken = EXAMPLES or USUAL[role], []
    asked = {}
    for label, kinds in requests():
        for case in (case for kind in kinds for case in kind[:count]):
            answer = case.call(**known)
            if answer.status_code == 401 and role != "anonymous":
                # An earlier request has ended the session or revoked the token.
                known = credentials(role, world)
                answer = case.call(**known)
            asked.setdefault(label, []).append(answer.status_code)
            try:
                case.validate_response(answer, checks=CHECKS)
            except (Exception, FailureGroup) as error:
                broken.append(f"{label} {answer.status_code}: {error}"[:1500])
    assert len(asked) >= 75
    counts = Counter(status for answers in asked.values() for status in answers)
    statuses = counts.keys()
    print(f"{role}: {counts.total()} requests, {len(broken)} broken, {dict(counts)}")
    assert not broken, f"{len(broken)} broken:\n" + "\n\n".join(broken[:10])
    if role == "anonymous":
        # 403 and 404: an address that no operation has.
        assert 401 in statuses <= {401, 403, 404, 405}
    else:
        # It reached the operations, and was not refused before.
        assert {200, 404, 422} <= statuses and 401 not in statuses

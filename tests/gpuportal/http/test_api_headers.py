"""Headers of the API: limits, and operations that should not be used any more."""

import re
from datetime import date

import pytest
from django.http import HttpRequest
from django.test import RequestFactory
from ninja import NinjaAPI, Router

from gpuportal.api_reference import reference
from gpuportal.http.openapi import ApiSchema, with_names, with_problems
from reservations.web.rate_limits import rate_uses
from telemetry.web.deprecation import deprecated
from tests.placement.lab import signed_in


@pytest.mark.once
@pytest.mark.django_db
def test_an_answer_tells_its_limit_and_what_is_left(alice, settings, redis_client):
    settings.BOOK_RATE_PER_MINUTE = 2
    client = signed_in(alice)
    left = []
    for status in (404, 404, 429):
        answer = client.delete("/api/v1/waiting/1")
        assert answer.status_code == status
        assert answer["RateLimit-Policy"] == '"book";q=2;w=60'
        found = re.fullmatch(r'"book";r=(\d+);t=(\d+)', answer["RateLimit"])
        assert found and 1 <= int(found[2]) <= 60
        left.append(int(found[1]))
    assert left == [1, 0, 0]
    assert answer["Retry-After"] == found[2]
    assert answer.json()["numbers"]["per_minute"] == 2
    plain = client.get("/api/v1/notices")
    assert "RateLimit" not in plain and "RateLimit-Policy" not in plain
    assert rate_uses.get() is None


@pytest.fixture
def old_api():
    api = NinjaAPI(urls_namespace="old", docs_url=None)
    inner = Router(tags=["telemetry"])

    @inner.get("/old")
    @deprecated(date(2027, 1, 1), instead="`GET /new`", sunset=date(2028, 1, 1))
    def old(request: HttpRequest, number: int = 0) -> None:
        """Return nothing."""

    @inner.get("/stays")
    @deprecated(date(2027, 1, 1), instead="`GET /new`")
    def stays(request: HttpRequest) -> None:
        """Return nothing."""

    outer = Router()
    outer.add_router("", inner)
    api.add_router("", outer)
    return api


@pytest.mark.pure
def test_a_deprecated_operation_says_so(old_api):
    views = {str(one.pattern): one.callback for one in old_api.urls[0]}
    get = RequestFactory().get
    for address in ("/old", "/old?number=x"):
        answer = views["old"](get(address))
        assert answer.status_code == (422 if "x" in address else 200)
        assert answer["Deprecation"] == "@1798761600"
        assert answer["Sunset"] == "Sat, 01 Jan 2028 00:00:00 GMT"
        assert answer["Link"].endswith('rel="deprecation"; type="text/html"')
    assert "Sunset" not in views["stays"](get("/stays"))
    schema = with_problems(with_names(ApiSchema(old_api, "api/v1/")))
    old, stays = (one for rows in reference(schema).values() for one in rows)
    assert old.deprecated and "gone from 2028-01-01 on. Use GET /new." in old.details
    assert stays.deprecated and "gone" not in stays.details

"""The table of headers in docs/design/security.md is true."""

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.test import override_settings

from tests.placement.lab import signed_in

PAGE = Path(settings.BASE_DIR) / "docs" / "design" / "security.md"
ROW = re.compile(r"^\| ([A-Z][\w-]+) \| (.*?) ?\| (met|partly|not sent)", re.MULTILINE)
SOMETIMES = {"Cache-Control"}


def rows():
    text = PAGE.read_text().partition("## Headers of answers")[2].partition("\n## ")[0]
    return {
        name: re.findall("`([^`]+)`", value) for name, value, _ in ROW.findall(text)
    }


@pytest.mark.once
@pytest.mark.django_db
@override_settings(
    SECURE_HSTS_SECONDS=31_536_000,
    SECURE_PROXY_SSL_HEADER=("HTTP_X_FORWARDED_PROTO", "https"),
)
@pytest.mark.parametrize(
    "address", ["/me/", "/api/v1/notices", "/api/v1/jobs/1", "/nowhere/", "/static/no"]
)
def test_each_header_is_as_the_table_says(alice, address):
    known = rows()
    assert len(known) == 16
    answer = signed_in(alice).get(address, headers={"x-forwarded-proto": "https"})
    for name, values in known.items():
        if values:
            sent = {part.strip() for part in re.split("[;,]", answer[name])}
            assert set(values) <= sent, name
        elif name not in SOMETIMES:
            assert name not in answer, name


@pytest.mark.django_db
def test_the_answers_that_the_table_names_are_not_stored(alice, client):
    named = [
        client.get("/login/"),
        signed_in(alice).get("/api/v1/jobs/1"),
        signed_in(alice).get(
            "/api/v1/calendar",
            {"start": "2027-01-18T09:00:00Z", "end": "2027-01-18T10:00:00Z"},
        ),
    ]
    for answer in named:
        assert "no-store" in answer["Cache-Control"]

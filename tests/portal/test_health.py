"""``/healthz``: open, quick, honest, silent about the rest."""

import pytest
from django.db import OperationalError

from gpuportal import health


@pytest.mark.django_db
def test_a_healthy_portal_says_so_to_a_stranger(client):
    answer = client.get("/healthz")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ok", "database": True, "broker": True}
    assert "no-store" in answer["Cache-Control"]


@pytest.mark.django_db
def test_a_dead_broker_is_told_and_nothing_else_leaks(client, settings):
    settings.REDIS_URL = "unix:///nowhere/else.sock?db=0"
    answer = client.get("/healthz")
    assert answer.status_code == 503
    assert answer.json() == {
        "status": "unavailable",
        "database": True,
        "broker": False,
    }
    assert b"nowhere" not in answer.content


@pytest.mark.django_db
def test_a_dead_database_is_told_and_nothing_else_leaks(client, monkeypatch):
    class Gone:
        def cursor(self):
            raise OperationalError("could not connect to 10.1.2.3 as portal")

    monkeypatch.setattr(health, "connection", Gone())
    answer = client.get("/healthz")
    assert answer.status_code == 503
    assert answer.json()["database"] is False
    assert b"10.1.2.3" not in answer.content


def test_health_is_read_only(client):
    assert client.post("/healthz").status_code == 405

"""One Job of Alice on node ``red``, whose queue the tests read."""

import json

import pytest
from celery import current_app

import gpuportal.celery
from placement.jobs import service as jobs
from placement.jobs.tick import job_tick
from placement.protocol import signing
from placement.protocol.commands import parse_order
from placement.protocol.job_lifecycle import JobState
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_node, make_reservation
from tests.placement.stage import NOW, fact, now_is, record
from tests.placement.watched import (  # noqa: F401  (fixtures, by name)
    cards,
    rules,
    slow,
    watched,
)

assert current_app.main == gpuportal.celery.app.main


@pytest.fixture
def node():
    return make_node("red", last_seen_at=NOW)


@pytest.fixture
def reservation(alice, node):
    return make_reservation(alice, make_gpus(2, node), start=NOW, state=State.ACTIVE)


@pytest.fixture
def job(alice, reservation):
    return jobs.launch(
        user=alice,
        reservation_id=reservation.pk,
        name="try",
        kind="recipe",
        recipe="burn-in",
        recipe_settings={"seconds": 5},
        now=NOW,
    )


@pytest.fixture
def orders(redis_client):
    """Take the messages of the node's queue, as its worker would."""

    def take(node="red"):
        taken = []
        while raw := redis_client.lpop(f"node.{node}"):
            body = json.loads(json.loads(raw)["body"])
            assert json.loads(raw)["headers"]["task"] == "node.order"
            signing.verify(
                body[1]["payload"], body[1]["signature"], signing.public_key_pem()
            )
            taken.insert(0, parse_order(body[1]["payload"]))
        return taken[::-1]

    return take


@pytest.fixture(autouse=True)
def text_bodies(monkeypatch):
    """Have kombu put bodies into the queue as text, to be read here."""
    from kombu.transport.virtual.base import Channel

    monkeypatch.setattr(Channel, "body_encoding", None)


@pytest.fixture
def running(job, orders):
    job_tick.tick(NOW)
    # Received then, regardless of the wall clock.
    record(fact(job, "started", at=NOW.timestamp()), now=NOW)
    orders()
    assert now_is(job) == JobState.RUNNING
    return job

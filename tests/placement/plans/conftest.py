"""One Job of Alice on node ``red``, whose queue the tests read. A lab with a frame, in
which a student is signed in.
"""

import pytest
from django.test import Client

from tests.placement.lab import make_lab, send_frame, signed_in
from tests.placement.stage_fixtures import (  # noqa: F401  (fixtures, by name)
    cards,
    job,
    node,
    orders,
    reservation,
    rules,
    running,
    slow,
    text_bodies,
    watched,
)


@pytest.fixture
def gpus(db, redis_client):
    found = make_lab()
    send_frame(redis_client)
    return found


@pytest.fixture
def student(alice, gpus) -> Client:
    return signed_in(alice)

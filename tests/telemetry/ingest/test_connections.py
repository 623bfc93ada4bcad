"""A node that opens connections without end loses them, and nobody else does."""

import logging
import socket
import time

import pytest
import redis

from telemetry.ingest.complaints import Complaints
from telemetry.ingest.connections import MOST_CONNECTIONS, Connections
from tests import brokers

pytestmark = pytest.mark.pure
logger = logging.getLogger(__name__)


@pytest.fixture(params=brokers.KINDS)
def broker(request, tmp_path):
    """A broker with the shipped users."""
    nodes = ["atlas", "borea"]
    with brokers.running(request.param, tmp_path, nodes=nodes) as running:
        yield running


def signed_in(broker, name, count):
    """Hold so many connections of a node."""
    held = []
    for _ in range(count):
        sock = socket.create_connection(("127.0.0.1", broker.port), 60)
        sock.sendall(f"AUTH node-{name} {brokers.NODE_PASSWORD}\r\n".encode())
        assert sock.recv(64) == b"+OK\r\n"
        held.append(sock)
    return held


def is_open(sock):
    try:
        sock.sendall(b"PING\r\n")
        return sock.recv(64) == b"+PONG\r\n"
    except OSError:
        return False


def test_connections_of_a_node_are_bounded_and_those_of_nobody_end(
    broker, monkeypatch, caplog
):
    complaints = Complaints(logger)
    portal = broker.portal
    connections = Connections(portal, complaints=complaints)
    honest = signed_in(broker, "borea", MOST_CONNECTIONS)
    flood = signed_in(broker, "atlas", MOST_CONNECTIONS + 1)
    silent = [
        socket.create_connection(("127.0.0.1", broker.port), 60) for _ in range(9)
    ]
    (misuse,) = connections.enforce(["atlas", "borea"])
    assert misuse.node == "atlas"
    assert f"{MOST_CONNECTIONS + 1} connections were ended" in misuse.what
    assert not any(map(is_open, flood))
    assert all(map(is_open, honest))
    # Who has only just come may still sign in.
    assert not complaints.counts
    monkeypatch.setattr("telemetry.ingest.connections.SIGN_IN_SECONDS", 1)
    time.sleep(1.2)
    assert connections.enforce(["atlas", "borea"]) == []
    assert "9 connections did not sign in" in caplog.text
    assert all(sock.recv(64) == b"" for sock in silent)
    assert all(map(is_open, honest))
    for sock in (*honest, *flood, *silent):
        sock.close()


def test_a_portal_whose_user_is_older_says_so(broker, caplog):
    broker.admin.execute_command("ACL", "SETUSER", "portal", "-client|list")
    connections = Connections(broker.portal, complaints=Complaints(logger))
    assert connections.enforce(["atlas"]) == []
    assert "+client|list +client|kill" in caplog.text


def test_a_broker_without_users_ends_nothing(valkey_url):
    client = redis.Redis.from_url(valkey_url)
    with client:
        assert Connections(client, complaints=Complaints(logger)).enforce(["a"]) == []

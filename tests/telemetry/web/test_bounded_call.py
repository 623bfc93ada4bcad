"""A call goes to checked addresses only, and has one limit of time for all of them."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from telemetry.web import bounded_call

ANSWER = b"HTTP/1.0 200 OK\r\n\r\nhello"


@pytest.fixture
def port():
    """Answer one request after another on 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            while True:
                try:
                    found, _peer = listener.accept()
                except OSError:
                    return
                with found:
                    found.recv(1000)
                    found.sendall(ANSWER)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(60)


def connection(port: int, *addresses: str) -> bounded_call.PinnedConnection:
    where = bounded_call.HostPort(False, "sso.example", port)
    return bounded_call.PinnedConnection(where, addresses, seconds=60)


def get(found: bounded_call.PinnedConnection, most_bytes: int = 100):
    return bounded_call.call(
        found, "GET", "/", headers={}, seconds=60, most_bytes=most_bytes
    )


def test_the_next_address_is_tried(port):
    # Nothing listens at the first one.
    assert get(connection(port, "127.0.0.2", "127.0.0.1")) == (200, b"hello")


def test_the_last_failure_is_raised(port):
    with pytest.raises(ConnectionRefusedError):
        get(connection(port, "127.0.0.2", "127.0.0.3"))
    with pytest.raises(OSError, match="no address"):
        get(connection(port))


def test_no_address_is_tried_after_the_time(port):
    late = connection(port, "127.0.0.1")
    late.hang_up()
    with pytest.raises(OSError):
        get(late)


def test_a_longer_answer_is_refused(port):
    with pytest.raises(bounded_call.AnswerTooLong):
        get(connection(port, "127.0.0.1"), most_bytes=4)
    assert get(connection(port, "127.0.0.1"), most_bytes=0) == (200, b"")


def test_lookups_that_hang_delay_only_those_of_their_pool(monkeypatch):
    release = threading.Event()
    real = socket.getaddrinfo

    def lookup(host, *rest, **more):
        if host == "hangs.example":
            release.wait(60)
        return real("127.0.0.1", *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    slow = bounded_call.HostPort(True, "hangs.example", 443)
    try:
        with ThreadPoolExecutor(1) as webhooks, ThreadPoolExecutor(1) as providers:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    bounded_call.resolved(slow, seconds=0.05, pool=webhooks)
            quick = bounded_call.HostPort(True, "sso.example", 443)
            assert bounded_call.resolved(quick, seconds=60, pool=providers) == [
                "127.0.0.1"
            ]
            release.set()
            # Those that waited were not begun.
            assert bounded_call.resolved(quick, seconds=60, pool=webhooks)
    finally:
        release.set()

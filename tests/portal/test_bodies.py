"""Bodies that are too long or no form: refused before they are kept, never a crash."""

import asyncio

import pytest
from django.test import Client

from gpuportal.handler import OneHopHandler
from placement.services.models import MOST_UPLOAD_BYTES

MIB = 2**20


def ask(path: str, *, headers=(), pieces: int = 0, wait_seconds: float = 10.0):
    """Send ``pieces`` and then silence; return (status, pieces that were read)."""
    read = 0
    sent: list[dict] = []

    async def receive() -> dict:
        nonlocal read
        if read == pieces:
            # Nothing more comes: a handler that waits for it hangs the test.
            await asyncio.sleep(30)
        read += 1
        return {"type": "http.request", "body": b"x" * MIB, "more_body": True}

    async def send(message: dict) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": path, "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), *headers],
    }  # fmt: skip
    asyncio.run(asyncio.wait_for(OneHopHandler()(scope, receive, send), wait_seconds))
    return sent[0], read


def test_a_declared_length_is_refused_before_a_byte_is_read():
    for path in ("/login/", "/plan/", "/api/v1/models", "/nope"):
        answer, read = ask(path, headers=[(b"content-length", b"100000000000")])
        assert (answer["status"], read) == (413, 0), path
        assert b"content-security-policy" in {n.lower() for n, _ in answer["headers"]}


def test_an_endless_body_is_refused_after_a_few_pieces():
    answer, read = ask("/login/", pieces=6)
    assert (answer["status"], read) == (413, 5)


def test_a_file_is_taken_only_from_somebody_with_a_session_or_token():
    inside = [(b"content-length", str(MOST_UPLOAD_BYTES).encode())]
    assert ask("/plan/", headers=inside)[0]["status"] == 413
    with pytest.raises(TimeoutError):  # it is being read
        ask("/plan/", headers=[*inside, (b"cookie", b"a=b")], wait_seconds=0.5)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("path", "body", "kind", "status"),
    [
        ("/api/v1/reservations", b"x" * (5 * MIB), "application/json", 413),
        ("/api/v1/models", b"x" * (5 * MIB), "text/plain", 422),
        ("/api/v1/models", b"nonsense", "multipart/form-data", 400),
        ("/api/v1/models", b"nonsense", "multipart/form-data; boundary=\xff", 400),
        ("/api/v1/models", b"--b\r\n\r\n", "multipart/form-data; boundary=b", 422),
    ],
)
def test_the_api_names_bodies_it_cannot_read(alice, path, body, kind, status):
    client = Client(raise_request_exception=False)
    client.force_login(alice, backend="django.contrib.auth.backends.ModelBackend")
    answer = client.post(path, body, content_type=kind)
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/problem+json"

"""The HTTPS channel: tokens, a node's own Jobs, bytes in order, limits."""

import hashlib
import threading
from io import BytesIO

import pytest
from django.core.exceptions import BadRequest
from django.core.handlers.asgi import ASGIRequest
from django.http import RawPostDataException
from django.test import Client
from django.utils import timezone

from placement.agent.portal_channel import (
    ChannelDown,
    ChannelRefused,
    TokenRefused,
    download_part,
    upload_log,
)
from placement.jobs.nodes import log_store
from placement.jobs.nodes.node_channel import body_of
from placement.models import Job
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_node, make_reservation


@pytest.fixture
def node(db):
    node = make_node("red")
    node.token = node.new_token()
    node.save()
    return node


@pytest.fixture
def job(alice, node):
    reservation = make_reservation(alice, make_gpus(1, node), state=State.ACTIVE)
    return Job.objects.create(
        reservation=reservation,
        owner=alice,
        node=node,
        name="try",
        kind="script",
        script="echo ä\n",
        attempt=1,
        state="running",
        ordered_at=timezone.now(),
    )


@pytest.fixture
def as_node(node):
    return Client(headers={"Authorization": f"Node red:{node.token}"})


def put(client, job, data=b"hello\n", offset=0, attempt=1):
    return client.put(
        f"/node/v1/jobs/{job.pk}/log?attempt={attempt}&offset={offset}",
        data,
        content_type="application/octet-stream",
    )


def test_a_node_fetches_its_script_with_its_sum(as_node, job):
    answer = as_node.get(f"/node/v1/jobs/{job.pk}/script")
    assert answer.content == "echo ä\n".encode()
    assert answer["X-Sha256"] == hashlib.sha256(answer.content).hexdigest()


@pytest.mark.once
@pytest.mark.parametrize(
    "header",
    [
        "",
        "Node red:wrong",
        "Node red",
        "Node :x",
        "Node blue:x",
        "Bearer x",
        "Node red:" + "x" * 9000,
    ],
)
def test_without_the_token_nothing_is_said(job, header):
    client = Client(headers={"Authorization": header} if header else {})
    for answer in (client.get(f"/node/v1/jobs/{job.pk}/script"), put(client, job)):
        assert answer.status_code == 401
        assert b"echo" not in answer.content
    assert log_store.size(job) == 0


def test_a_session_of_the_owner_is_no_node(client, alice, job):
    client.force_login(alice)
    assert client.get(f"/node/v1/jobs/{job.pk}/script").status_code == 401


def test_another_nodes_job_is_not_found(job):
    blue = make_node("blue")
    token = blue.new_token()
    blue.save()
    client = Client(headers={"Authorization": f"Node blue:{token}"})
    missing = client.get("/node/v1/jobs/999999/script")
    theirs = client.get(f"/node/v1/jobs/{job.pk}/script")
    assert missing.status_code == theirs.status_code == 404
    assert missing.content == theirs.content
    assert put(client, job).status_code == 404


def test_pieces_are_appended_where_the_stored_part_ends(as_node, job):
    assert put(as_node, job).json() == {"size": 6}
    assert put(as_node, job, b"more", offset=6).json() == {"size": 10}
    assert log_store.path_of(job).read_bytes() == b"hello\nmore"
    job.refresh_from_db()
    assert job.log_bytes == 10


def test_a_request_does_not_keep_the_piece_that_it_carried(as_node, job):
    """Requests are in reference cycles; a mebibyte in each is a leak for a while."""
    answer = put(as_node, job)
    assert answer.json() == {"size": 6}
    with pytest.raises(RawPostDataException):
        assert answer.wsgi_request.body


@pytest.mark.once
@pytest.mark.parametrize("offset", [0, 3, 7, 10**15])
def test_a_piece_from_elsewhere_is_told_where_to_go_on(as_node, job, offset):
    put(as_node, job)
    answer = put(as_node, job, b"x", offset=offset)
    assert (answer.status_code, answer.json()["size"]) == (409, 6)
    assert log_store.size(job) == 6


@pytest.mark.once
@pytest.mark.parametrize(
    "query",
    [
        "",
        "attempt=1",
        "attempt=1&offset=-1",
        "attempt=x&offset=0",
        "attempt=1&offset=1e3",
    ],
)
def test_wrong_numbers_are_refused(as_node, job, query):
    answer = as_node.put(f"/node/v1/jobs/{job.pk}/log?{query}", b"x")
    assert answer.status_code == 422


@pytest.mark.parametrize("attempt", [0, 2])
def test_an_attempt_that_never_was_is_not_found(as_node, job, attempt):
    assert put(as_node, job, attempt=attempt).status_code == 404


def test_a_piece_over_one_mebibyte_is_refused(as_node, job):
    assert put(as_node, job, b"x" * 2**20).status_code == 200
    assert put(as_node, job, b"x" * (2**20 + 1), offset=2**20).status_code == 413


def test_a_log_over_its_ceiling_is_refused(as_node, job, monkeypatch):
    monkeypatch.setattr(log_store, "MOST_BYTES", 10)
    assert put(as_node, job).status_code == 200
    assert put(as_node, job, b"12345", offset=6).status_code == 413
    assert log_store.size(job) == 6


def test_a_full_disk_is_the_webs_fault_and_passes(as_node, job, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log_store, "append", full)
    assert put(as_node, job).status_code == 507


def test_only_get_and_put(as_node, job):
    assert as_node.post(f"/node/v1/jobs/{job.pk}/log").status_code == 405
    assert as_node.put(f"/node/v1/jobs/{job.pk}/script").status_code == 405


def test_two_pieces_at_once_never_interleave(job):
    pieces = [b"a" * 100_000, b"b" * 100_000]
    outcome = []

    def send(data):
        try:
            outcome.append(log_store.append(job, attempt=1, offset=0, data=data))
        except Exception as error:
            outcome.append(type(error).__name__)

    threads = [threading.Thread(target=send, args=(piece,)) for piece in pieces]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, outcome)) == ["100000", "LogConflict"]
    assert log_store.path_of(job).read_bytes() in pieces


@pytest.mark.django_db(transaction=True)
def test_the_nodes_side_and_the_webs_side_understand_each_other(
    live_asgi, job, node, tmp_path
):
    token_file = tmp_path / "token"
    token_file.write_text(node.token)
    web = {"web_url": live_asgi, "node": "red", "job": job.pk, "key": job.key}
    script = download_part(
        "script",
        **web,
        token_file=token_file,
        until=0,
        given_up=lambda: False,
        sha256=hashlib.sha256(job.script.encode()).hexdigest(),
    )
    assert script.decode() == job.script
    up = {**web, "attempt": 1, "token": node.token}
    assert upload_log(**up, offset_bytes=0, data=b"hello\n") == 6
    assert upload_log(**up, offset_bytes=99, data=b"x") == 6
    with pytest.raises(TokenRefused, match="401"):
        upload_log(**{**up, "token": "no"}, offset_bytes=6, data=b"x")
    with pytest.raises(ChannelRefused, match="413"):
        upload_log(**up, offset_bytes=6, data=b"x" * (2**20 + 1))
    with pytest.raises(ChannelRefused, match=r"404.*another job of that number"):
        upload_log(**{**up, "key": "0" * 16}, offset_bytes=6, data=b"x")
    Job.objects.filter(pk=job.pk).update(log_cut_at=timezone.now())
    with pytest.raises(ChannelRefused, match=r"413.*This log is not stored"):
        upload_log(**up, offset_bytes=6, data=b"x")
    with pytest.raises(ChannelDown):
        upload_log(**{**up, "web_url": "http://127.0.0.1:1"}, offset_bytes=6, data=b"x")


def test_a_request_that_its_node_gave_up_is_a_bad_one():
    body = BytesIO(b"24")
    headers = [(b"content-length", b"2")]
    scope = {"method": "POST", "path": "/node/v1/ssh", "headers": headers}
    request = ASGIRequest(scope | {"query_string": b""}, body)
    body.close()
    with pytest.raises(BadRequest):
        body_of(request)

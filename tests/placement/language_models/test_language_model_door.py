"""What the door of language models accepts from a client and from a server."""

import asyncio
import gzip
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from django.utils import timezone

from gpuportal.http import language_model_door, serve_door
from gpuportal.http.language_model_door import MOST_TEXT_BYTES, AdmittedText, _TextCall
from placement.access.access_target import AccessTarget
from placement.language_models.callable_model import CallableModel
from placement.language_models.rules import CHAT, MODELS
from placement.protocol.call_refusal import CallRefused
from placement.protocol.stream_refusal import StreamRefused
from placement.protocol.stream_state import StreamPiece
from reservations.accounts.api_tokens import create_token
from reservations.models import ApiToken, User

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
BODY = json.dumps({"messages": [{"role": "user", "content": "a"}]}).encode()
EVENT = b'data: {"choices": [{}]}\n\n'


def head(status=200, kind="application/json", framing="Connection: close"):
    words = f"HTTP/1.1 {status} x\r\nContent-Type: {kind}\r\n{framing}\r\n\r\n"
    return words.encode()


def in_chunks(text, size=1):
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in parts) + b"0\r\n\r\n"


class Call:
    """One call, whose server and whose brokers are here."""

    def __init__(self, monkeypatch, *answer, parts=(BODY,), headers=(), full=False):
        self.did, self.tokens, self.sent, self.written = [], [], [], b""
        self.answer, self.parts = list(answer), list(parts)
        self.headers, self.full = list(headers), full
        brokers = {"stream_broker": self, "call_broker": self}
        for name, broker in brokers.items():
            monkeypatch.setattr(language_model_door, name, lambda broker=broker: broker)
        monkeypatch.setattr(language_model_door, "until_access_ends", self.never)
        monkeypatch.setattr(
            language_model_door,
            "add_tokens",
            lambda _, count, now: self.tokens.append(count),
        )

    async def never(self, *_words):
        await asyncio.Event().wait()

    @asynccontextmanager
    async def open(self, target, service, **_options):
        self.did.append("seat")
        if self.full:
            raise StreamRefused("too-many", "no seat")
        yield self

    @asynccontextmanager
    async def place(self, job, user, size_bytes, seconds):
        self.did.append(f"memory {size_bytes}")
        yield "0"

    async def write(self, data):
        self.written += data

    async def read(self):
        return StreamPiece(self.answer.pop(0), False) if self.answer else None

    async def receive(self):
        if not self.parts:
            await self.never()
        self.did.append("body")
        body = self.parts.pop(0)
        more = bool(self.parts)
        return {"type": "http.request", "body": body, "more_body": more}

    async def send(self, message):
        self.sent.append(message)

    def run(self):
        access = AccessTarget("node1", 1, 7, "alice", "", NOW)
        target = CallableModel(access, "5-1-ab", 5, "m", "alice", NOW)
        user = SimpleNamespace(pk=7)
        admitted = AdmittedText(user, target, CHAT, token="")
        scope = {"headers": self.headers}
        asyncio.run(_TextCall(admitted, scope, self.receive, self.send).run())
        return self

    def refused(self):
        with pytest.raises(CallRefused) as error:
            self.run()
        return error.value


def test_the_seat_and_the_memory_come_before_the_body(monkeypatch):
    call = Call(monkeypatch, head() + b"{}").run()
    assert call.did == ["seat", f"memory {MOST_TEXT_BYTES}", "body"]
    assert call.written.endswith(BODY.replace(b" ", b"")[:-1] + b',"model":"m"}')
    full = Call(monkeypatch, full=True)
    assert full.refused().code == "too-many"
    assert full.did == ["seat"] and full.tokens == []


@pytest.mark.parametrize(
    ("parts", "headers", "tokens"),
    (
        ([], [(b"content-length", b"1048577")], []),
        ([b"x" * 2**20, b"x"], [], [2**18 + 1]),
        (
            [gzip.compress(b"x" * (2**20 + 1), mtime=0)],
            [(b"content-encoding", b"gzip")],
            None,
        ),
    ),
)
def test_a_large_body_is_refused_and_counts_as_far_as_it_was_read(
    monkeypatch, parts, headers, tokens
):
    call = Call(monkeypatch, parts=parts, headers=headers)
    error = call.refused()
    assert (error.status, str(error)) == (
        413,
        "A request to this address may have at most 1 MiB.",
    )
    assert call.tokens == ([-(-len(parts[0]) // 4)] if tokens is None else tokens)
    assert call.written == b""


def test_a_body_that_is_refused_counts(monkeypatch):
    call = Call(monkeypatch, parts=[b"x" * 400])
    assert call.refused().status == 400 and call.tokens == [100]


@pytest.mark.parametrize("status", (302, 304, 600, 799, 999))
def test_a_status_that_no_client_may_see_is_a_bad_answer(monkeypatch, status):
    call = Call(monkeypatch, head(status) + b"{}")
    assert call.refused().status == 502
    assert call.sent == [] and call.tokens == [-(-len(BODY) // 4)]


def test_a_server_that_closes_without_a_word_does_not_save_tokens(monkeypatch):
    call = Call(monkeypatch)
    assert call.refused().code == "not-ready" and call.tokens == [-(-len(BODY) // 4)]


def test_small_chunks_are_joined_and_events_counted_by_the_type_of_the_answer(
    monkeypatch,
):
    events = in_chunks(EVENT * 40)
    begin = head(kind="text/event-stream", framing="Transfer-Encoding: chunked")
    call = Call(monkeypatch, begin, events[:3000], events[3000:]).run()
    parts = [one["body"] for one in call.sent if one.get("more_body")]
    assert len(parts) == 2 and b"".join(parts) == EVENT * 40
    assert call.tokens == [-(-len(BODY) // 4) + 40], "the request asked for no stream"


def test_a_chunk_that_cannot_be_read_ends_the_answer(monkeypatch):
    begin = head(framing="Transfer-Encoding: chunked")
    call = Call(monkeypatch, begin + b"1\r\na\r\nZZ\r\n")
    assert call.refused().code == "bad-answer" and call.tokens


@pytest.mark.django_db
def test_an_open_answer_ends_with_the_token_and_with_the_user(alice):
    def admitted(token):
        target = CallableModel(None, "5-1-ab", 5, "m", "alice", NOW)
        return AdmittedText(alice, target, CHAT, token=token)

    row, token = create_token(
        user=alice, label="t", scopes=("serve:5",), days=1, now=timezone.now()
    )
    by_token, by_session = admitted(token), admitted("")
    by_token.check_user()
    by_session.check_user()
    ApiToken.objects.filter(pk=row.pk).update(revoked_at=timezone.now())
    with pytest.raises(CallRefused):
        by_token.check_user()
    by_session.check_user()
    User.objects.filter(pk=alice.pk).update(is_active=False)
    with pytest.raises(CallRefused):
        by_session.check_user()


@pytest.mark.django_db
def test_the_list_of_models_counts_as_a_request(alice, rf, monkeypatch):
    monkeypatch.setattr(language_model_door, "authenticated_user", lambda *_: alice)
    monkeypatch.setattr(language_model_door, "callable_model", lambda *_: None)

    def too_fast(*_words, **_named):
        raise CallRefused("too-many", "too fast")

    monkeypatch.setattr(language_model_door, "check_rate", too_fast)
    assert language_model_door.admit_call(rf.get("/"), 5, MODELS).status_code == 429


@pytest.mark.django_db
def test_a_model_with_the_name_stats_does_not_open_the_figures_of_all(
    alice, rf, monkeypatch
):
    asked = []
    monkeypatch.setattr(serve_door, "authenticated_user", lambda *_: alice)
    monkeypatch.setattr(
        serve_door, "call_target", lambda user, pk, model: asked.append(model)
    )
    for path in ("v2/models/stats", "v2/models/stats/stats", "v2/repository/index"):
        assert serve_door.admit(rf.get("/"), 5, path).status_code == 202
    assert asked == ["", "stats", ""]

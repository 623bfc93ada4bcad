"""The address of language models: ``/serve/<job>/v1/...``, an OpenAI-compatible API.

An ASGI application before Django's, like that of served models (``serve_door.py``),
whose authentication it uses. The request goes to the model's server over a stream to
the node, and each part of the answer goes to the client when it arrives, so an answer
by server-sent events is not buffered. The node gets no cookie and no token. It returns
a status and a body, whose type is one of a few.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import h11
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt

from gpuportal.http.bodies import Receive, Scope
from gpuportal.http.concurrent_work import until_first_ends
from gpuportal.http.handler import OneHopHandler
from gpuportal.http.serve_door import (
    BODY_SECONDS,
    CallAdmission,
    authenticated_user,
    call_headers,
    declared_bytes,
    plain_body,
    refusal,
    request_body,
    safe_headers,
)
from gpuportal.http.token_auth import bearer, user_of
from placement.access.access_guard import until_access_ends
from placement.access.access_target import AccessTarget
from placement.access.stream_broker import stream_broker
from placement.language_models.callable_model import CallableModel, callable_model
from placement.language_models.rules import (
    CHAT,
    COMPLETION,
    MODELS,
    AnswerTokens,
    checked_body,
)
from placement.language_models.token_rate_limit import add_tokens, check_tokens
from placement.protocol.byte_stream import ByteStream
from placement.protocol.call_refusal import CallRefused
from placement.protocol.stream_refusal import StreamRefused
from placement.serving.call_broker import call_broker
from reservations.models import User
from reservations.web.rate_limits import check_rate
from telemetry.protocol.codec import encode
from telemetry.protocol.coded_error import PROBLEM_TYPE, CodedError
from telemetry.protocol.sentences import sentence
from telemetry.web.error_answers import problem_response

SERVICE = "text"
METHODS = {CHAT: "POST", COMPLETION: "POST", MODELS: "GET"}
JSON, EVENTS = b"application/json", b"text/event-stream"
MOST_HEADER_BYTES = 16 * 1024
MOST_TEXT_BYTES = 2**20
"""Of a request's body, compressed and unpacked."""
PLACE_SECONDS = BODY_SECONDS + 30.0
"""How long a lost request takes memory of the site."""
EVENTS_AT_ONCE = 256
"""Parts of an answer that are read before other work gets a turn."""
HEALTH = "/health"
"""The address of both servers that answers once the model is loaded."""
HEALTH_SECONDS = 10.0
ANSWER_SECONDS = 1800.0
"""How long a server may compute before its answer begins."""


class AdmittedText(HttpResponse):
    """Django's admission of a request, with its destination."""

    def __init__(
        self, user: User, target: CallableModel, path: str, *, token: str
    ) -> None:
        # Reached only if Django is called without this application.
        super().__init__(b"Language models are answered by the ASGI door.", status=202)
        self.user, self.target, self.path_there = user, target, path
        self.token = token
        """"": the User has a session."""

    def check_user(self) -> None:
        """Check by the rows of now who calls.

        Raises:
            RequestRefused: the token cannot be used any more, or the User is inactive.
        """
        if self.token:
            user = user_of(self.token, scopes=[f"serve:{self.target.job}"])
        else:
            user = User.objects.filter(pk=self.user.pk, is_active=True).first()
        if user is None:
            raise CallRefused("signed-out", "Send a token that is valid.")


@csrf_exempt
@login_not_required
def admit_call(request: HttpRequest, pk: int, rest: str) -> HttpResponse:
    """Authenticate and resolve a request, without its body."""
    try:
        user = authenticated_user(request, pk)
        path, now = rest.rstrip("/"), timezone.now()
        if path not in METHODS:
            there = ", ".join(f"/{one}" for one in METHODS)
            words = sentence(
                "There is no such address. There are: {there}", there=there
            )
            raise CallRefused("not-found", words)
        if request.method != METHODS[path]:
            words = sentence("Only {method} is answered here.", method=METHODS[path])
            raise CallRefused("method", words)
        target = callable_model(user, pk, now)
        limit = settings.SERVE_RATE_PER_MINUTE
        check_rate("infer", user_pk=user.pk, per_minute=limit, now=now)
        if path != MODELS:
            check_tokens(user.pk, now)
        return AdmittedText(user, target, path, token=bearer(request))
    except CallRefused as error:
        return refusal(error)
    except StreamRefused as error:
        return problem_response(error)


class LanguageModelDoor:
    """Answers calls to language models. ``others`` gets all other requests."""

    def __init__(self, django: OneHopHandler, others: Any) -> None:
        self.django, self.others = django, others
        self._admission = CallAdmission(django)

    async def __call__(self, scope: Scope, receive: Receive, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http" or not _is_text_call(scope["path"]):
            await self.others(scope, receive, send)
            return
        admitted = await self._admission.check(scope)
        if not isinstance(admitted, AdmittedText):
            await self._send(admitted, send)
            return
        call = _TextCall(admitted, scope, receive, send)
        try:
            await call.run()
        except CodedError as error:
            if not call.begun:
                response = problem_response(error)
                safe_headers(admitted, response)
                await self._send(response, send)

    async def _send(self, response: HttpResponseBase, send: Any) -> None:
        await self.django.send_response(_with_error(response), send)


def _is_text_call(path: str) -> bool:
    parts = path.split("/", 4)
    return len(parts) > 3 and parts[1] == "serve" and parts[3] == "v1"


def _with_error(response: HttpResponseBase) -> HttpResponseBase:
    """Return problem details with ``error`` as clients of OpenAI's API read it."""
    kind = response.headers.get("Content-Type", "")
    if not isinstance(response, HttpResponse) or not kind.startswith(PROBLEM_TYPE):
        return response
    problem = json.loads(response.content)
    problem["error"] = {
        "message": problem.get("detail") or problem.get("title"),
        "type": problem.get("code"),
        "code": problem.get("code"),
        "param": next(iter(problem.get("fields") or ()), None),
    }
    response.content = json.dumps(problem).encode()
    response.headers["Content-Length"] = str(len(response.content))
    return response


class _TextCall:
    """One admitted request and its answer."""

    def __init__(
        self, admitted: AdmittedText, scope: Scope, receive: Receive, send: Any
    ) -> None:
        self.admitted, self.target = admitted, admitted.target
        self.scope, self.receive, self.send = scope, receive, send
        self.begun = False
        self.tokens = AnswerTokens()

    async def run(self) -> None:
        """Carry the request and its answer.

        Raises:
            CodedError: the client gets this problem, if nothing was sent yet.
        """
        if self.admitted.path_there == MODELS:
            await self._list_models()
            return
        said = call_headers(self.scope)
        kind = said.get("content-type", "application/json").partition(";")[0].strip()
        if kind.lower() != "application/json":
            words = sentence("The body must be application/json.")
            raise CallRefused("content-type", words)
        size_bytes = declared_bytes(said, "POST", most_bytes=MOST_TEXT_BYTES)
        try:
            await self._exchange(said, size_bytes)
        finally:
            # A body that was read counts, also one that is refused.
            if total := self.tokens.total:
                add = sync_to_async(add_tokens, thread_sensitive=False)
                now = timezone.now()
                await asyncio.shield(add(self.admitted.user.pk, total, now))

    async def _body(self, said: Mapping[str, str], size_bytes: int) -> bytes | None:
        """Read the request and return it for the server. None: the client has left.

        Raises:
            CallRefused: it is refused.
        """

        async def counted() -> Mapping[str, Any]:
            message = await self.receive()
            self.tokens.request_bytes += len(message.get("body", b""))
            return message

        most = {"most_bytes": MOST_TEXT_BYTES}
        data = await request_body(counted, size_bytes, **most)
        if data is None:
            return None
        data = await plain_body(data, said, **most)
        self.tokens.request_bytes = max(self.tokens.request_bytes, len(data))
        body = checked_body(data, name=self.target.name, path=self.admitted.path_there)
        return encode(body)

    async def _list_models(self) -> None:
        """Answer with the one model, once its server has loaded it."""

        async def look(stream: ByteStream) -> None:
            exchange = _NodeExchange(stream)
            await exchange.request("GET", HEALTH)
            async with asyncio.timeout(HEALTH_SECONDS):
                status, _ = await exchange.head()
            if status != 200:
                raise _not_ready()

        async def work(stream: ByteStream) -> None:
            await until_first_ends(look(stream), _until_disconnect(self.receive))

        try:
            await self._with_stream(work)
        except TimeoutError:
            raise _not_ready() from None
        one = {
            "id": self.target.name,
            "object": "model",
            "created": int(self.target.started_at.timestamp()),
            "owned_by": self.target.owner,
        }
        answer = json.dumps({"object": "list", "data": [one]}).encode()
        await self._begin(200, JSON)
        await self.send({"type": "http.response.body", "body": answer})

    async def _exchange(self, said: Mapping[str, str], size_bytes: int) -> None:
        """Take the caller's seat and memory, read the body, and carry the answer.

        Raises:
            CodedError: the call is refused.
        """
        user = self.admitted.user.pk

        async def work(stream: ByteStream) -> None:
            exchange = _NodeExchange(stream)
            async with call_broker().place(
                self.target.job, user, size_bytes, PLACE_SECONDS
            ):
                body = await self._body(said, size_bytes)
                if body is None:
                    return
                path = f"/{self.admitted.path_there}"
                async with asyncio.timeout(ANSWER_SECONDS):
                    await until_first_ends(
                        exchange.request("POST", path, body),
                        _until_disconnect(self.receive),
                    )
                del body
            await until_first_ends(
                self._pass_answer(exchange), _until_disconnect(self.receive)
            )

        try:
            await self._with_stream(work)
        except TimeoutError:
            words = sentence("The model gave no answer in time.")
            raise CallRefused("no-answer", words) from None

    async def _pass_answer(self, exchange: "_NodeExchange") -> None:
        """Send each part of the server's answer to the client."""
        async with asyncio.timeout(ANSWER_SECONDS):
            status, kind = await exchange.head()
        if status >= 500 and kind != JSON:
            words = sentence("The model’s server failed. See the log of its job.")
            raise CallRefused("bad-answer", words)
        # The server decides, whatever the request asked for.
        self.tokens.is_stream = kind == EVENTS
        await self._begin(status, kind)
        while (part := await exchange.part()) is not None:
            self.tokens.feed(part)
            message = {"type": "http.response.body", "body": part}
            await self.send({**message, "more_body": True})
            # Parts in memory await nothing, and others must get a turn.
            await asyncio.sleep(0)
        await self.send({"type": "http.response.body", "body": b""})

    async def _with_stream(self, work: Any) -> None:
        """Do work with a stream to the server, while the client may.

        Raises:
            CodedError: the access or the stream has ended, or the answer is invalid.
        """
        most = settings.SERVE_TEXT_CALLS
        opened = stream_broker().open(
            self.target.access,
            SERVICE,
            most=most,
            options={"folder": self.target.folder},
        )
        try:
            async with opened as stream:
                await until_first_ends(
                    work(stream),
                    until_access_ends(self.target.access, self._access),
                )
        except h11.ProtocolError:
            words = sentence("The model’s answer is not valid.")
            raise CallRefused("bad-answer", words) from None
        except StreamRefused as refused:
            if refused.code != "too-many":
                raise
            words = sentence(
                "You have {most} open calls to language models, which is the limit per "
                "person. Wait until one is answered.",
                most=most,
            )
            raise CallRefused("too-many", words) from None

    def _access(self) -> AccessTarget:
        """Return the node, by the rows of now. Raises CodedError."""
        self.admitted.check_user()
        now = timezone.now()
        return callable_model(self.admitted.user, self.target.job, now).access

    async def _begin(self, status: int, kind: bytes) -> None:
        headers = {
            name.lower(): value
            for name, value in self.admitted.items()
            if name.lower() not in ("content-type", "content-length")
        }
        # A proxy in front must not collect events either.
        own = {"cache-control": "no-store", "x-accel-buffering": "no"}
        raw = [(k.encode(), v.encode("latin-1")) for k, v in (headers | own).items()]
        self.begun = True
        start = {"type": "http.response.start", "status": status}
        await self.send({**start, "headers": [(b"content-type", kind), *raw]})


class _NodeExchange:
    """One request to a server on a node, and its answer, by HTTP over a stream."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self.http = h11.Connection(
            h11.CLIENT, max_incomplete_event_size=MOST_HEADER_BYTES
        )
        self._is_complete = False

    async def request(self, method: str, path: str, body: bytes = b"") -> None:
        """Send a request."""
        headers = [
            ("host", "text"),
            ("connection", "close"),
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
        ]
        head = h11.Request(method=method, target=path, headers=headers)
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            if data := self.http.send(event):
                await self.stream.write(data)

    async def head(self) -> tuple[int, bytes]:
        """Return the status and the type of the answer, which is one of a few."""
        while True:
            event = await self._event()
            if isinstance(event, h11.Response):
                # A redirect or an upgrade would lead the client elsewhere.
                status = event.status_code
                if not (200 <= status < 300 or 400 <= status < 600):
                    words = sentence("The model’s answer is not valid.")
                    raise CallRefused("bad-answer", words)
                return status, _kind(dict(event.headers.raw_items()))

    async def part(self) -> bytes | None:
        """Return what has arrived of the answer's body. None: it is complete.

        A body in many small chunks is joined as far as it is in memory.
        """
        pieces: list[bytes] = []
        while not self._is_complete:
            event = self.http.next_event()
            if isinstance(event, h11.Data):
                pieces.append(bytes(event.data))
                if len(pieces) % EVENTS_AT_ONCE == 0:
                    await asyncio.sleep(0)
            elif isinstance(event, h11.EndOfMessage):
                self._is_complete = True
            elif event is not h11.NEED_DATA:
                raise _not_ready()
            elif pieces:
                break
            else:
                await self._read()
        return b"".join(pieces) if pieces else None

    async def _event(self) -> Any:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            await self._read()
        if isinstance(event, h11.ConnectionClosed):
            raise _not_ready()
        await asyncio.sleep(0)
        return event

    async def _read(self) -> None:
        piece = await self.stream.read()
        if piece is None and self.http.their_state is h11.SEND_RESPONSE:
            raise _not_ready()
        self.http.receive_data(piece.data if piece else b"")


def _kind(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the type of an answer that a client may see."""
    lower = {name.lower(): value for name, value in headers.items()}
    kind = lower.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return kind if kind in (JSON, EVENTS) else b"application/octet-stream"


def _not_ready() -> CallRefused:
    words = sentence("The model is not loaded yet. Its job’s log shows how far it is.")
    return CallRefused("not-ready", words)


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue

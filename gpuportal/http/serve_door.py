"""The address of served models: ``/serve/<job>/v2/...`` and ``/serve/<job>/stats``.

An ASGI application before Django's, because a request may wait seconds for its answer
and must not occupy a thread. Django authenticates the request as for every other
address (hosts, session and CSRF, or a token with scope ``serve``): it goes through the
whole chain without its body, to ``admit`` below. Then the body is read, within limits,
and sent to the endpoint's node. The node gets the model's path and four headers, never
a cookie or a token. It returns a status, four headers and bytes.
"""

import asyncio
import io
import re
import time
import zlib
from collections import deque
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from ninja.utils import check_csrf

from gpuportal.http.bodies import Receive, Scope
from gpuportal.http.handler import OneHopHandler
from gpuportal.http.token_auth import bearer, user_of
from placement.protocol.call_refusal import CallRefused
from placement.protocol.serving_frames import (
    LENGTH_HEADER,
    MOST_REQUEST_BYTES,
    Call,
    NodeAnswer,
    allowed_path,
)
from placement.protocol.serving_times import quantile
from placement.serving.call_access import (
    CallTarget,
    call_target,
    stats_target,
)
from placement.serving.call_broker import call_broker
from reservations.accounts.second_factors.sign_in import check_demand
from reservations.models import User
from reservations.web.rate_limits import check_rate
from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import sentence
from telemetry.web.error_answers import problem_response

ADDRESS = re.compile(r"/serve/([1-9][0-9]{0,17})/(v2(?:/.*)?|stats)")
_MODEL = re.compile(r"/v2/models/([^/]+)")
_DEADLINE = re.compile(r"[0-9]{1,7}(?:\.[0-9]{1,6})?")
OF_ALL_MODELS = ("/v2/repository/index", "/v2/models/stats")
BODY_TYPES = ("application/json", "application/octet-stream")
GZIP_BITS = 16 + zlib.MAX_WBITS
"""For zlib: only gzip, with its checksum (zlib.net "Advanced Functions")."""
BODY_SECONDS = 30.0
INFER_SECONDS = 30.0
ASK_SECONDS = 10.0
FIRST_WAY_MS = 5.0
"""Assumed time of the way to the node and back, until it is measured."""
WAY_QUANTILE = 0.9
MOST_WAYS = 1000
ADMITTED_AT_ONCE = 8
"""Calls that Django checks at once in one process. The other threads are for pages."""
MOST_WAITING = 32
"""Calls that wait for that. Django checks as many in less than 0.1 s, so a longer queue
would only answer calls later than they can be used."""


class AdmittedCall(HttpResponse):
    """Django's admission of a request, with its destination."""

    def __init__(self, target: CallTarget, path: str) -> None:
        # Reached only if Django is called without this application. An error would be
        # logged.
        super().__init__(b"Served models are answered by the ASGI door.", status=202)
        self.target, self.path_there = target, path


@csrf_exempt
@login_not_required
def admit(request: HttpRequest, pk: int, rest: str) -> HttpResponse:
    """Authenticate and resolve a request, without its body."""
    try:
        path = "/stats" if rest == "stats" else allowed_path(rest)
        user = authenticated_user(request, pk)
        if path is None:
            raise CallRefused("not-found", "There is no such address.")
        if request.method not in ("GET", "HEAD", "POST"):
            raise CallRefused("method", "Only GET and POST are answered here.")
        if path == "/stats":
            return AdmittedCall(stats_target(user, pk), path)
        model = _MODEL.match(path)
        named = model[1] if model else None
        # These name the models of everybody, so only the endpoint's owner sees them. A
        # model with the name "stats" opens neither.
        target = call_target(user, pk, "" if path in OF_ALL_MODELS else named)
        if request.method == "POST":
            check_rate(
                "infer",
                user_pk=user.pk,
                per_minute=settings.SERVE_RATE_PER_MINUTE,
                now=timezone.now(),
            )
        return AdmittedCall(target, path)
    except CallRefused as error:
        return refusal(error)


def authenticated_user(request: HttpRequest, job_id: int) -> User:
    """Return the User of the token, or of the session with its CSRF token.

    Raises:
        CallRefused: 401 or 403.
    """
    if "Authorization" in request.headers:
        try:
            user = user_of(bearer(request), scopes=[f"serve:{job_id}"])
        except RequestRefused as missing:
            raise CallRefused(missing.code, missing.detail) from None
        if user is None:
            raise CallRefused("signed-out", "Send a token that is valid.")
        return user
    if not isinstance(request.user, User):
        raise CallRefused("signed-out", "Sign in, or send a token that is valid.")
    if request.method == "POST" and check_csrf(request) is not None:
        raise CallRefused("page-expired", "The page's CSRF token is missing or old.")
    try:
        check_demand(request.session, request.user, timezone.now())
    except RequestRefused as missing:
        raise CallRefused(missing.code, missing.detail) from None
    return request.user


def refusal(error: CallRefused) -> HttpResponse:
    """Return the problem that answers a refused call."""
    response: HttpResponse = problem_response(error)
    # A model that is not ready is no error of the portal, so it is not logged.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


class ServeDoor:
    """Answers calls to served models. Django gets all other requests."""

    def __init__(self, django: OneHopHandler) -> None:
        self.django = django
        self._admission = CallAdmission(django)
        self._ways: dict[int, deque[float]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Any) -> None:
        """Answer one request."""
        if scope["type"] == "http" and ADDRESS.fullmatch(scope["path"]):
            await self._serve(scope, receive, send)
        else:
            await self.django(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Any) -> None:
        begun = time.monotonic()
        admitted = await self._admission.check(scope)
        if not isinstance(admitted, AdmittedCall):
            await self.django.send_response(admitted, send)
            return
        try:
            answer = await self._sent_to_node(scope, receive, admitted, begun)
        except CallRefused as error:
            response = refusal(error)
            safe_headers(admitted, response)
            await self.django.send_response(response, send)
            return
        if answer is not None:
            response = HttpResponse(answer.body, status=answer.status)
            for name, value in answer.headers.items():
                response[name] = value
            response["Cache-Control"] = "no-store"
            safe_headers(admitted, response)
            await self.django.send_response(response, send)

    async def _sent_to_node(
        self, scope: Scope, receive: Receive, admitted: AdmittedCall, begun: float
    ) -> NodeAnswer | None:
        """Send one call to the node. Return None if the client has left.

        Raises:
            Refused, CallRefused: the client gets this problem instead.
        """
        said = call_headers(scope)
        target = admitted.target
        headers = _checked_headers(said, scope["method"])
        seconds = INFER_SECONDS if scope["method"] == "POST" else ASK_SECONDS
        size_bytes = declared_bytes(said, scope["method"])
        async with call_broker().place(
            target.job, target.user, size_bytes, BODY_SECONDS + seconds
        ) as name:
            body = await request_body(receive, size_bytes)
            if body is None:
                return None
            body = await plain_body(body, said)
            gone_ms = (time.monotonic() - begun) * 1000
            way_ms = gone_ms + self._round_trip_ms(target.job)
            call = Call(
                call=name,
                job=target.job,
                attempt=target.attempt,
                method="POST" if scope["method"] == "POST" else "GET",
                path=admitted.path_there,
                headers=headers | {"x-way-ms": f"{way_ms:.3f}"},
                within_seconds=seconds,
                expires_at=0.0,
                body=body,
                key=target.key,
            )
            asked_at = time.monotonic()
            answer = await _unless_gone(receive, call_broker().ask(target, call))
            if answer is not None:
                self._record_round_trip(target.job, answer, time.monotonic() - asked_at)
            return answer

    def _round_trip_ms(self, job_id: int) -> float:
        known = self._ways.get(job_id)
        return quantile(known, WAY_QUANTILE) if known else FIRST_WAY_MS

    def _record_round_trip(
        self, job_id: int, answer: NodeAnswer, seconds: float
    ) -> None:
        """Learn the time of the way: the total without the server's time."""
        served = answer.headers.get("x-served-ms")
        if served is None:
            return
        if len(self._ways) > MOST_WAYS:
            self._ways.clear()
        ways = self._ways.setdefault(job_id, deque(maxlen=50))
        ways.append(max(0.0, seconds * 1000 - float(served)))


class CallAdmission:
    """Lets Django check the calls of one door, a few at once."""

    def __init__(self, django: OneHopHandler) -> None:
        self.django = django
        self._turns = asyncio.Semaphore(ADMITTED_AT_ONCE)
        self._waiting = 0

    async def check(self, scope: Scope) -> HttpResponseBase:
        """Return Django's answer to a request without its body, or 503 at once if too
        many wait.
        """
        if self._waiting >= MOST_WAITING:
            words = sentence(
                "The portal has too many open requests now. Try again in a moment."
            )
            return refusal(CallRefused("full", words))
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        try:
            return await admission(self.django, scope)
        finally:
            self._turns.release()


async def admission(django: OneHopHandler, scope: Scope) -> HttpResponseBase:
    """Return Django's answer to a request without its body."""
    body = (b"content-type", b"content-length", b"transfer-encoding")
    headers = [(k, v) for k, v in scope["headers"] if k not in body]
    request, error = django.create_request({**scope, "headers": headers}, io.BytesIO())
    if request is None:
        assert error is not None
        return error
    return await django.get_response_async(request)


def safe_headers(admitted: HttpResponse, response: HttpResponse) -> None:
    """Add the headers that the site's middlewares add to every answer."""
    for name, value in admitted.items():
        if name.lower() not in ("content-type", "content-length"):
            response.headers.setdefault(name, value)
    # Without it the server sends the body in chunks.
    response.headers["Content-Length"] = str(len(response.content))


def call_headers(scope: Scope) -> dict[str, str]:
    """Return the relevant headers, each at most once.

    Raises:
        Refused: 400 if one of them appears twice.
    """
    wanted = (
        *("content-type", "content-length", "content-encoding"),
        *(LENGTH_HEADER, "x-deadline-ms"),
    )
    found: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1").lower()
        if name in wanted:
            if name in found:
                raise CallRefused("header", f"{name} appears twice.")
            found[name] = value.decode("latin-1").strip()
    return found


def _checked_headers(said: Mapping[str, str], method: str) -> dict[str, str]:
    """Return the call for the node. Raises Refused."""
    headers: dict[str, str] = {}
    if method == "POST":
        kind = said.get("content-type", BODY_TYPES[0]).partition(";")[0].strip().lower()
        if kind not in BODY_TYPES:
            raise CallRefused(
                "content-type", f"The body must be {' or '.join(BODY_TYPES)}."
            )
        headers["content-type"] = kind
    length = said.get(LENGTH_HEADER)
    if length is not None:
        if not re.fullmatch(r"[0-9]{1,9}", length):
            name = "Inference-Header-Content-Length"
            raise CallRefused(
                "header", f"{name} is not a valid length.", fields={name: "no length"}
            )
        headers[LENGTH_HEADER] = length
    deadline = said.get("x-deadline-ms")
    if deadline is not None:
        if not _DEADLINE.fullmatch(deadline) or not 0 < float(deadline) <= 3_600_000:
            words = "must be milliseconds, above 0 and at most 3600000"
            raise CallRefused(
                "header", f"X-Deadline-Ms {words}.", fields={"X-Deadline-Ms": words}
            )
        headers["x-deadline-ms"] = deadline
    return headers


def declared_bytes(
    said: Mapping[str, str], method: str, *, most_bytes: int = MOST_REQUEST_BYTES
) -> int:
    """Return the greatest length of the body. Raises Refused if that is too long."""
    length = said.get("content-length")
    if length is None:
        return most_bytes if method == "POST" else 0
    if not re.fullmatch(r"[0-9]{1,18}", length):
        raise CallRefused("header", "Content-Length is not a valid length.")
    if int(length) > most_bytes:
        raise _too_large(most_bytes)
    # A compressed body takes its whole space only when it is unpacked.
    return most_bytes if said.get("content-encoding") else int(length)


async def plain_body(
    body: bytes, said: Mapping[str, str], *, most_bytes: int = MOST_REQUEST_BYTES
) -> bytes:
    """Return a body as it was before the client compressed it.

    Raises:
        CallRefused: 413 if it is too long then, 415 if it is compressed by other means
            than gzip, 400 if it is damaged.
    """
    coding = said.get("content-encoding", "identity").lower()
    if coding == "identity":
        return body
    if coding not in ("gzip", "x-gzip"):
        raise CallRefused("content-type", "Content-Encoding must be gzip or identity.")
    return await asyncio.to_thread(unpacked, body, most_bytes)


def unpacked(body: bytes, most_bytes: int = MOST_REQUEST_BYTES) -> bytes:
    """Return the content of a gzip body. No more than the limit is ever unpacked.

    Raises:
        CallRefused: it is too long, or it is damaged.
    """
    reader = zlib.decompressobj(wbits=GZIP_BITS)
    try:
        plain = reader.decompress(body, most_bytes + 1)
    except zlib.error:
        plain = b""
    if len(plain) > most_bytes:
        raise _too_large(most_bytes)
    if not reader.eof or reader.unused_data:
        raise CallRefused("bad-request", "The body is not one valid gzip stream.")
    return plain


def _too_large(most_bytes: int) -> CallRefused:
    most = most_bytes // 2**20
    return CallRefused(
        "too-large", f"A request to this address may have at most {most} MiB."
    )


async def request_body(
    receive: Receive, size_bytes: int, *, most_bytes: int = MOST_REQUEST_BYTES
) -> bytes | None:
    """Read the body. Return None if the client left.

    Args:
        receive: its parts.
        size_bytes: of ``declared_bytes``.
        most_bytes: the limit of the address, for the refusal.

    Raises:
        CallRefused: it is too long, or takes too long.
    """
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                size += len(message.get("body", b""))
                if size > size_bytes:
                    raise _too_large(most_bytes)
                parts.append(message.get("body", b""))
                if not message.get("more_body"):
                    return b"".join(parts)
    except TimeoutError:
        raise CallRefused("slow", "The request body did not arrive in time.") from None


async def _unless_gone(receive: Receive, asking: Any) -> NodeAnswer | None:
    """Wait for an answer as long as the client waits."""
    asked = asyncio.ensure_future(asking)
    gone = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
        return await asked if asked.done() else None
    finally:
        for task in (asked, gone):
            task.cancel()
        await asyncio.gather(asked, gone, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue

"""The addresses that a machine calls while it joins, and `join.sh` itself."""

import re
from collections.abc import Callable
from functools import wraps
from http import HTTPStatus
from typing import Any

from axes.helpers import get_client_ip_address
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST, require_safe

from gpuportal.doctor.machine_diagnosis import MachineFacts
from gpuportal.node_join import service
from gpuportal.node_join.code_archive import code_archive
from gpuportal.node_join.join_refusal import JoinFault, JoinRefused
from gpuportal.node_join.rules import (
    FAILURE_SECONDS,
    MOST_FAILURES,
    reachable_broker,
)
from placement.jobs.nodes.node_channel import body_of, for_nodes, length_of, node_with
from placement.protocol.join_messages import (
    MOST_REQUEST_BYTES,
    PUBLIC_KEY,
    JoinUntrusted,
    read_credential,
    read_request,
)
from telemetry.live.broker_client import BROKER
from telemetry.models import Node, NodeJoin
from telemetry.paths import BASE_DIR
from telemetry.protocol.codec import Malformed, decode, to_plain
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import sentence
from telemetry.web.error_answers import problem_response
from telemetry.web.json_values import unstorable

SCRIPT = BASE_DIR / "deploy" / "join.sh"
EXAMPLE_LINE = "\nportal=https://gpu.example.org\n"
NONCE_LENGTH = 32
MOST_FACTS_BYTES = 16_384

View = Callable[..., HttpResponse]


def portal_origin(request: HttpRequest) -> str:
    """Return the portal's address, without a slash at the end."""
    return settings.PORTAL_URL or request.build_absolute_uri("/").rstrip("/")


@require_safe
@never_cache
@login_not_required
def join_script(request: HttpRequest) -> HttpResponse:
    """Send the script with the portal's address in it."""
    line = f"\nportal={portal_origin(request)}\n"
    if not _plain_address(portal_origin(request)):
        raise RequestRefused(
            "not-found",
            sentence("PORTAL_URL is not a web address. Set it in portal.env."),
        )
    text = SCRIPT.read_text().replace(EXAMPLE_LINE, line, 1)
    return HttpResponse(text, content_type="text/plain; charset=utf-8")


def _plain_address(origin: str) -> bool:
    """Whether an address means the same to a shell without quotes."""
    return all(c.isascii() and (c.isalnum() or c in ":/.-[]_") for c in origin)


def for_machines(view: View) -> View:
    """Admit a machine with a join token. ``view(request, join, ...)``.

    Wrong secrets are counted for each address. A right one is never refused for what
    others behind the same address did.
    """

    @csrf_exempt
    @never_cache
    @login_not_required
    @wraps(view)
    def admitted(request: HttpRequest, **kwargs: object) -> HttpResponse:
        address = get_client_ip_address(request) or ""
        try:
            join = _join_of(request.headers.get("Authorization", ""), address)
            return view(request, join, **kwargs)
        except CodedError as error:
            return problem_response(error)

    return admitted


def _join_of(header: str, address: str) -> NodeJoin:
    credential = read_credential(header)
    try:
        if credential is None:
            raise JoinRefused(JoinFault.MISTYPED)
        public_id, secret = credential
        return service.admitted(public_id=public_id, secret=secret, now=timezone.now())
    except JoinRefused as error:
        if error.fault in (JoinFault.MISTYPED, JoinFault.UNKNOWN):
            _refuse_many(address)
            _count_failure(address)
        raise


def _key(address: str) -> str:
    return f"join.failures.{address}"


def _refuse_many(address: str) -> None:
    count: Any = BROKER.get(_key(address))
    if count is not None and int(count) >= MOST_FAILURES:
        raise RequestRefused(
            "too-many",
            sentence(
                "Too many join tokens from this address were wrong. Try again in 10 "
                "minutes."
            ),
            retry_seconds=FAILURE_SECONDS,
        )


def _count_failure(address: str) -> None:
    with BROKER.pipeline() as pipe:
        pipe.incr(_key(address))
        pipe.expire(_key(address), FAILURE_SECONDS, nx=True)
        pipe.execute()


def _for_machine_or_node(view: View) -> View:
    """Admit a machine with a join token, and a node with its own token."""
    machine = for_machines(view)

    @csrf_exempt
    @never_cache
    @login_not_required
    @wraps(view)
    def either(request: HttpRequest, **kwargs: object) -> HttpResponse:
        node = node_with(request.headers.get("Authorization", ""))
        if node is None:
            return machine(request, **kwargs)
        try:
            return view(request, NodeJoin(name=node.name), **kwargs)
        except CodedError as error:
            return problem_response(error)

    return either


@require_safe
@_for_machine_or_node
def greeting(request: HttpRequest, join: NodeJoin) -> HttpResponse:
    """Send time, node and the sum of the code, signed.

    ``key`` is the machine's public key. The token is bound to the first one.
    """
    nonce = request.GET.get("nonce", "")
    if len(nonce) != NONCE_LENGTH or set(nonce) - set("0123456789abcdef"):
        raise RequestRefused("bad-text", sentence("The request has no valid nonce."))
    public_key = request.GET.get("key", "")
    if public_key:
        if not re.fullmatch(PUBLIC_KEY, public_key):
            raise RequestRefused("bad-text", sentence("The machine's key is invalid."))
        # A node that updates its code has no row of a token.
        if join.pk is not None:
            service.bind_key(join=join, public_key=public_key)
    text = service.greeting(
        join=join, nonce=nonce, code_sum=code_archive().sha256, now=timezone.now()
    )
    return HttpResponse(text, content_type="text/plain; charset=utf-8")


@require_safe
@_for_machine_or_node
def code(request: HttpRequest, join: NodeJoin, *, sha256: str) -> HttpResponse:
    """Send the archive of that sum."""
    found = code_archive()
    if sha256 != found.sha256:
        raise RequestRefused(
            "not-found", sentence("The portal was updated meanwhile. Try again.")
        )
    return HttpResponse(found.data, content_type="application/gzip")


@require_POST
@for_machines
def node(request: HttpRequest, join: NodeJoin) -> HttpResponse:
    """Let the machine join, and send the signed answer."""
    if not reachable_broker(settings.REDIS_URL):
        raise RequestRefused(
            "unavailable",
            sentence("Other machines cannot reach this portal's broker."),
        )
    body = _body(request, 2 * MOST_REQUEST_BYTES)
    try:
        wanted = read_request(body)
        if wrong := unstorable(to_plain(wanted)):
            raise Malformed(*next(iter(wrong.items())))
    except Malformed as error:
        raise RequestRefused("invalid", str(error)) from error
    except JoinUntrusted as error:
        raise JoinRefused(JoinFault.UNSIGNED) from error
    text = service.let_join(
        join=join,
        request=wanted,
        address=get_client_ip_address(request) or "",
        web_url=portal_origin(request),
        now=timezone.now(),
    )
    return HttpResponse(text, content_type="text/plain; charset=utf-8")


@for_nodes("POST")
def doctor(request: HttpRequest, node: Node) -> HttpResponse:
    """Store what the node's doctor found."""
    try:
        body = _body(request, MOST_FACTS_BYTES)
        facts = to_plain(decode(MachineFacts, body, most_bytes=MOST_FACTS_BYTES))
        if wrong := unstorable(facts):
            raise Malformed(*next(iter(wrong.items())))
    except Malformed as error:
        return problem_response(RequestRefused("invalid", str(error)))
    except RequestRefused as error:
        return problem_response(error)
    service.store_facts(node=node, facts=facts, now=timezone.now())
    return HttpResponse(status=HTTPStatus.NO_CONTENT)


def _body(request: HttpRequest, most_bytes: int) -> bytes:
    length = length_of(request)
    if length < 0:
        raise RequestRefused("length-needed", sentence("The length must be known."))
    if length > most_bytes:
        raise RequestRefused(
            "too-large", sentence("At most {n} bytes a request.", n=most_bytes)
        )
    return body_of(request)

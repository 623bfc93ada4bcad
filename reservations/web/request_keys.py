"""``Idempotency-Key``: a program sends a request again without doing it twice.

It follows draft-ietf-httpapi-idempotency-key-header. Each User has separate keys. An
answer is kept in the database for a day, so it survives a restart.
"""

import hashlib
import json
import re
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

from django.db import IntegrityError
from django.http import Http404, HttpRequest
from django.utils import timezone
from ninja import Status
from ninja.responses import NinjaJSONEncoder

from reservations.models import RequestKey, User
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import sentence

HEADER = "Idempotency-Key"
RUNNING = timedelta(seconds=60)
"""After this time without an answer, a request was interrupted."""
RETRY_SECONDS = 1
PATTERN = r'^"?[A-Za-z0-9._~:/+=-]{1,255}"?$'
"""The draft has a quoted string. Many programs leave the quotes out."""
_WORDS = (
    "A unique value, such as a UUID. The same request with the same key gets the first "
    "answer again, for 24 hours."
)
PARAMETER: dict[str, Any] = {
    "in": "header",
    "name": HEADER,
    "required": False,
    "schema": {"type": "string", "pattern": PATTERN, "description": _WORDS},
    "description": _WORDS,
}
"""The header in the schema of the API."""
_Operation = Callable[..., Status[Any]]


def repeatable(operation: _Operation) -> _Operation:
    """Let a program send the request of an operation again.

    The operation is not executed again for the same key. A refusal is not kept, because
    nothing was made: the request may be sent again with the same key. After a crash it
    is not known what was made, so the request is not executed again either.

    Raises:
        RequestRefused: the key is invalid, belongs to another request, or its request
            has no answer yet.
    """

    @wraps(operation)
    def answer(request: HttpRequest, *args: Any, **values: Any) -> Status[Any]:
        sent = request.headers.get(HEADER)
        if sent is None:
            return operation(request, *args, **values)
        row, first = _claimed(request, _checked(sent))
        if not first:
            return _first_answer(row)
        try:
            made = operation(request, *args, **values)
        except (CodedError, Http404):
            row.delete()
            raise
        row.status = made.status_code
        row.answer = json.dumps(made.value, cls=NinjaJSONEncoder)
        row.save(update_fields=["status", "answer"])
        return made

    answer.repeatable = True  # type: ignore[attr-defined]
    return answer


def _checked(sent: str) -> str:
    if re.fullmatch(PATTERN, sent) is None:
        raise RequestRefused(
            "invalid",
            sentence("The header Idempotency-Key is not valid."),
            fields={
                HEADER: sentence(
                    "It must have 1 to 255 characters: letters, digits and ._~:/+=-"
                )
            },
        )
    return sent.strip('"')


def _claimed(request: HttpRequest, key: str) -> tuple[RequestKey, bool]:
    """Return the row of a key, and whether this request is its first.

    Raises:
        RequestRefused: another request was sent with this key.
    """
    assert isinstance(request.user, User)
    now = timezone.now()
    RequestKey.objects.old(now).filter(user=request.user, key=key).delete()
    seen = _fingerprint(request)
    try:
        row, first = RequestKey.objects.get_or_create(
            user=request.user, key=key, defaults={"fingerprint": seen, "sent_at": now}
        )
    except IntegrityError:
        # The first request was refused in between, and has just deleted its row.
        raise _still_running() from None
    if row.fingerprint != seen:
        raise RequestRefused(
            "key-reused",
            sentence(
                "This Idempotency-Key was sent with another request. Use a new key for "
                "each request."
            ),
        )
    return row, first


def _fingerprint(request: HttpRequest) -> str:
    parts = (str(request.method), request.get_full_path())
    told = hashlib.sha256("\0".join(parts).encode())
    told.update(b"\0" + request.body)
    return told.hexdigest()


def _still_running() -> RequestRefused:
    return RequestRefused(
        "request-running",
        sentence(
            "The first request with this Idempotency-Key has no answer yet. Send it "
            "again in a moment."
        ),
        retry_seconds=RETRY_SECONDS,
    )


def _first_answer(row: RequestKey) -> Status[Any]:
    if row.status is not None:
        return Status(row.status, json.loads(row.answer))
    if timezone.now() - row.sent_at < RUNNING:
        raise _still_running()
    raise RequestRefused(
        "request-interrupted",
        sentence(
            "The first request with this Idempotency-Key was interrupted. See whether "
            "it was done before you send it with a new key."
        ),
    )

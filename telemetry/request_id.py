"""The id of the request that caused the present work, for the lines of every log.

The web gives each request an id, or takes the one that the proxy sent. It goes with
the tasks and the orders that the request causes, so one search finds the lines of web,
worker and node. It authorizes nothing.
"""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token

HEADER = "X-Request-ID"
TASK_HEADER = "request_id"
"""Header of Celery's messages. It is not signed, so it is only used in logs."""
MOST_CHARACTERS = 64
_FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{7,63}")
_current: ContextVar[str] = ContextVar("request_id", default="")


def current() -> str:
    """Return the id of the present work; "" outside of any request."""
    return _current.get()


def new() -> str:
    """Return an id that no other request has: 32 hexadecimal digits."""
    return secrets.token_hex(16)


def accepted(given: object) -> str:
    """Return an id from outside, or a new one if its form is not safe to log.

    >>> accepted("0f3b6c1e-3f5d-4c59-9d4c-5a1f8a4c9f11")
    '0f3b6c1e-3f5d-4c59-9d4c-5a1f8a4c9f11'
    >>> len(accepted("a line\\nof a log"))
    32
    """
    if isinstance(given, str) and _FORM.fullmatch(given):
        return given
    return new()


@contextmanager
def set_for(given: str) -> Iterator[None]:
    """Set the id for the work in this block. With "" nothing changes."""
    if not given:
        yield
        return
    token = begin(given)
    try:
        yield
    finally:
        end(token)


def begin(given: str) -> Token[str]:
    """Set the id until `end`, for callers that cannot use a block."""
    return _current.set(given)


def end(token: Token[str]) -> None:
    """Set the id that was set before `begin`."""
    _current.reset(token)

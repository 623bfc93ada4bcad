"""The limit of requests per minute of one person, counted in the broker.

Without the broker no request is refused, because a booking matters more than its rate.
The answers of the API tell the limits that their request counted for
(draft-ietf-httpapi-ratelimit-headers-10).
"""

import logging
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Any

import redis
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from reservations.rules.errors import TooFast
from reservations.rules.window import unix
from telemetry.live.broker_client import BROKER

MINUTE_SECONDS = 60
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RateUse:
    """What is left of a limit after a request."""

    name: str
    per_minute: int
    left: int
    reset_seconds: int
    """Until all of it is available again."""


rate_uses: ContextVar[list[RateUse] | None] = ContextVar("rate_uses", default=None)
"""The limits for which the present request was counted. None: nobody asks."""


def rate_headers(uses: list[RateUse]) -> dict[str, str]:
    """Return the headers that describe limits.

    >>> rate_headers([RateUse("book", 60, 58, 21)])["RateLimit-Policy"]
    '"book";q=60;w=60'
    >>> rate_headers([RateUse("book", 60, 58, 21)])["RateLimit"]
    '"book";r=58;t=21'
    >>> rate_headers([])
    {}
    """
    last = {use.name: use for use in uses}.values()
    if not last:
        return {}
    policies = (f'"{one.name}";q={one.per_minute};w={MINUTE_SECONDS}' for one in last)
    limits = (f'"{one.name}";r={one.left};t={one.reset_seconds}' for one in last)
    return {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(limits)}


def with_rate_headers(run: Callable[..., HttpResponseBase]) -> Any:
    """Add the limits for which a request was counted to its answer."""

    @wraps(run)
    def answer(request: HttpRequest, *args: Any, **values: Any) -> HttpResponseBase:
        uses: list[RateUse] = []
        outer = rate_uses.set(uses)
        try:
            response = run(request, *args, **values)
        finally:
            rate_uses.reset(outer)
        for name, value in rate_headers(uses).items():
            response[name] = value
        return response

    return answer


def check_rate(what: str, *, user_pk: int, per_minute: int, now: datetime) -> None:
    """Count one request.

    Raises:
        TooFast: the limit of this minute is exceeded.
    """
    _count(what, user_pk, per_minute, now)


def check_address_rate(
    what: str, *, address: str, per_minute: int, now: datetime
) -> None:
    """Count one request of a visitor who is not signed in.

    Raises:
        TooFast: the limit of this minute is exceeded.
    """
    _count(what, address, per_minute, now)


def _count(what: str, caller: int | str, per_minute: int, now: datetime) -> None:
    key = f"rate.{what}.{caller}.{unix(now) // MINUTE_SECONDS}"
    try:
        with BROKER.pipeline(transaction=False) as pipe:
            pipe.incr(key)
            pipe.expire(key, 2 * MINUTE_SECONDS)
            count = int(pipe.execute()[0])
    except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
        log.warning("rates are not counted: %s", error)
        return
    reset_seconds = MINUTE_SECONDS - unix(now) % MINUTE_SECONDS
    uses = rate_uses.get()
    if uses is not None:
        left = max(0, per_minute - count)
        uses.append(RateUse(what, per_minute, left, reset_seconds))
    if count > per_minute:
        raise TooFast(per_minute=per_minute, retry_seconds=reset_seconds)

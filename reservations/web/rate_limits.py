"""The limit of requests per minute of one person, counted in the broker.

Without the broker no request is refused, because a booking matters more than its rate.
"""

import logging
from datetime import datetime

import redis

from reservations.rules.errors import TooFast
from reservations.rules.window import unix
from telemetry.live.broker_client import BROKER

MINUTE_SECONDS = 60
log = logging.getLogger(__name__)


def check_rate(what: str, *, user_pk: int, per_minute: int, now: datetime) -> None:
    """Count one request.

    Raises:
        TooFast: the limit of this minute is exceeded.
    """
    _count(f"{what}.{user_pk}", per_minute, now)


def check_address_rate(
    what: str, *, address: str, per_minute: int, now: datetime
) -> None:
    """Count one request of a visitor who is not signed in.

    Raises:
        TooFast: the limit of this minute is exceeded.
    """
    _count(f"{what}.{address}", per_minute, now)


def _count(caller: str, per_minute: int, now: datetime) -> None:
    key = f"rate.{caller}.{unix(now) // MINUTE_SECONDS}"
    try:
        with BROKER.pipeline(transaction=False) as pipe:
            pipe.incr(key)
            pipe.expire(key, 2 * MINUTE_SECONDS)
            count = int(pipe.execute()[0])
    except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
        log.warning("rates are not counted: %s", error)
        return
    if count > per_minute:
        raise TooFast(per_minute=per_minute)

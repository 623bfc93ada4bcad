"""The tokens that a person may use in a minute, counted in the broker.

Without the broker no call is refused, as for other rates
(``reservations/web/rate_limits.py``). A call is admitted while the minute's sum is
below the limit. Its tokens are added when it ends.
"""

import logging
from datetime import datetime

import redis
from django.conf import settings

from placement.protocol.call_refusal import CallRefused
from reservations.rules.window import unix
from reservations.web.rate_limits import MINUTE_SECONDS
from telemetry.live.broker_client import BROKER
from telemetry.protocol.sentences import sentence

OUTAGES = (redis.ConnectionError, redis.TimeoutError, OSError)

logger = logging.getLogger(__name__)


def _key(user_pk: int, now: datetime) -> str:
    return f"rate.tokens.{user_pk}.{unix(now) // MINUTE_SECONDS}"


def check_tokens(user_pk: int, now: datetime) -> None:
    """Refuse a call of a person who has used the tokens of this minute.

    Raises:
        CallRefused: with the limit, the tokens used, and the seconds to wait.
    """
    most = settings.SERVE_TOKENS_PER_MINUTE
    try:
        used = int(BROKER.get(_key(user_pk, now)) or 0)  # type: ignore[arg-type]
    except OUTAGES as error:
        logger.warning("tokens are not counted: %s", error)
        return
    if used >= most:
        seconds = MINUTE_SECONDS - unix(now) % MINUTE_SECONDS
        words = sentence(
            "You have used {used} tokens of language models in this minute. The limit "
            "is {most} per person. Try again in {seconds} s.",
            used=f"{used:,}",
            most=f"{most:,}",
            seconds=seconds,
        )
        refused = CallRefused("too-many-tokens", words)
        refused.retry_seconds = seconds
        raise refused


def add_tokens(user_pk: int, tokens: int, now: datetime) -> None:
    """Add the tokens of a call that has ended."""
    key = _key(user_pk, now)
    try:
        with BROKER.pipeline(transaction=False) as pipe:
            pipe.incrby(key, tokens)
            pipe.expire(key, 2 * MINUTE_SECONDS)
            pipe.execute()
    except OUTAGES as error:
        logger.warning("tokens are not counted: %s", error)

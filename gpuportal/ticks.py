"""When each periodic task was last done: what a stopped clock is known by.

The worker notes each success in the broker. Nobody else is needed to see that beat or
worker is away: the note grows old. A broker that lost its notes has new ones after one
interval of each task.
"""

import functools
import logging
import time
from collections.abc import Mapping
from typing import Any

import redis
from django.conf import settings

logger = logging.getLogger(__name__)

KEY = "portal.ticks"
"""A hash in the broker: name of the task, Unix seconds of its last success."""
BROKER_TIMEOUT_SECONDS = 2.0
LATE_SECONDS = 15.0
"""A task that comes each second has been missed so often before it counts as late."""
LATE_INTERVALS = 3.0
"""The same for tasks that come less often, in their own intervals."""


def note(task: str) -> None:
    """Note that a periodic task was done. A broker that is away is no error."""
    if task not in allowed_seconds():
        return
    try:
        broker().hset(KEY, task, repr(time.time()))
    except redis.RedisError as error:
        logger.warning("the tick of %s is not noted: %s", task, error)


def begin() -> None:
    """Let the time run from now for each task that was never done."""
    now = repr(time.time())
    try:
        for task in allowed_seconds():
            broker().hsetnx(KEY, task, now)
    except redis.RedisError as error:
        logger.warning("the ticks are not noted: %s", error)


def ages() -> dict[str, float | None]:
    """Seconds since each periodic task was last done; None: not since the broker began.

    Raises:
        redis.RedisError: the broker does not answer.
    """
    found: dict[bytes, bytes] = broker().hgetall(KEY)  # type: ignore[assignment]
    now = time.time()
    return {
        task: max(0.0, now - float(at)) if (at := found.get(task.encode())) else None
        for task in allowed_seconds()
    }


def late(found: Mapping[str, float | None]) -> dict[str, float | None]:
    """Those of ``ages`` that should have been done again by now.

    A task without a note is late where no other is in time: a broker that was just
    emptied has the notes of the frequent ones first.
    """
    allowed = allowed_seconds()
    in_time = any(
        age_seconds is not None and age_seconds <= allowed[task]
        for task, age_seconds in found.items()
    )
    return {
        task: age_seconds
        for task, age_seconds in found.items()
        if (not in_time if age_seconds is None else age_seconds > allowed[task])
    }


def allowed_seconds() -> dict[str, float]:
    """How old the last success of each periodic task may be."""
    schedule: dict[str, dict[str, Any]] = settings.CELERY_BEAT_SCHEDULE
    return {
        entry["task"]: max(LATE_SECONDS, LATE_INTERVALS * float(entry["schedule"]))
        for entry in schedule.values()
    }


def broker() -> redis.Redis:
    """A client of the broker that gives up soon."""
    return _client(settings.REDIS_URL)


@functools.lru_cache(maxsize=4)
def _client(url: str) -> redis.Redis:
    return redis.Redis.from_url(
        url,
        socket_timeout=BROKER_TIMEOUT_SECONDS,
        socket_connect_timeout=BROKER_TIMEOUT_SECONDS,
    )

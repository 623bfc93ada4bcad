"""When each periodic task was last done, to detect that they have stopped.

The worker records each success in the broker. If beat or worker is away, the record
becomes old. A broker that lost the records has new ones after one interval of each
task.
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
"""How often a task of each second is missed before it counts as late."""
LATE_INTERVALS = 3.0
"""How many intervals a less frequent task is missed before it counts as late."""


def note(task: str) -> None:
    """Record that a periodic task was done. A broker that is away is not an error."""
    if task not in allowed_seconds():
        return
    try:
        broker().hset(KEY, task, repr(time.time()))
    except redis.RedisError as error:
        logger.warning("the tick of %s is not noted: %s", task, error)


def begin() -> None:
    """Begin to count the time now for each task that was never done."""
    now = repr(time.time())
    try:
        for task in allowed_seconds():
            broker().hsetnx(KEY, task, now)
    except redis.RedisError as error:
        logger.warning("the ticks are not noted: %s", error)


def ages() -> dict[str, float | None]:
    """Return the seconds since each periodic task was last done.

    None: not since the broker's start.

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
    """Return those of ``ages`` that should have been done again by now.

    A task without a record is late if no other task is in time. After the broker was
    emptied, the frequent tasks have a record first.
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
    """Return how old the last success of each periodic task may be."""
    schedule: dict[str, dict[str, Any]] = settings.CELERY_BEAT_SCHEDULE
    return {
        entry["task"]: max(LATE_SECONDS, LATE_INTERVALS * float(entry["schedule"]))
        for entry in schedule.values()
    }


def broker() -> redis.Redis:
    """Return a client of the broker with short time limits."""
    return _client(settings.REDIS_URL)


@functools.lru_cache(maxsize=4)
def _client(url: str) -> redis.Redis:
    return redis.Redis.from_url(
        url,
        socket_timeout=BROKER_TIMEOUT_SECONDS,
        socket_connect_timeout=BROKER_TIMEOUT_SECONDS,
    )

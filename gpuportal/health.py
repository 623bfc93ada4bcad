"""``/healthz``: whether the portal can work, for a load balancer or a supervisor."""

import functools
import logging

import redis
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

logger = logging.getLogger(__name__)
BROKER_TIMEOUT_SECONDS = 2.0


@login_not_required
@never_cache
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """Answer 200 when database and broker answer, otherwise 503.

    Open to everybody, so it says which of the two is away and nothing else.
    """
    found = {"database": _database_answers(), "broker": _broker_answers()}
    ok = all(found.values())
    return JsonResponse(
        {"status": "ok" if ok else "unavailable", **found}, status=200 if ok else 503
    )


def _database_answers() -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            row: object = cursor.fetchone()
            return row == (1,)
    except DatabaseError as error:
        logger.warning("database: %s", error)
        return False


def _broker_answers() -> bool:
    try:
        return bool(_broker(settings.REDIS_URL).ping())
    except redis.RedisError as error:
        logger.warning("broker: %s", error)
        return False


@functools.lru_cache(maxsize=4)
def _broker(url: str) -> redis.Redis:
    return redis.Redis.from_url(
        url,
        socket_timeout=BROKER_TIMEOUT_SECONDS,
        socket_connect_timeout=BROKER_TIMEOUT_SECONDS,
    )

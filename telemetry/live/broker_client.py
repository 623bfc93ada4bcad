"""One connection pool to the broker for what a process publishes and counts."""

import threading

import redis
from django.conf import settings

_client: redis.Redis | None = None
_client_lock = threading.Lock()


def broker_client() -> redis.Redis:
    """Return this process's connection pool to the broker.

    Made once, under a lock: a second one that is dropped again closes, when it
    is collected, connections that other threads are reading from.
    """
    global _client
    with _client_lock:
        if _client is None:
            _client = redis.Redis.from_url(
                settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2
            )
        return _client

"""The connection pool to the broker with which a process publishes and counts."""

import threading

import redis
from django.conf import settings

_client: redis.Redis | None = None
_client_lock = threading.Lock()


def broker_client() -> redis.Redis:
    """Return this process's connection pool to the broker.

    It is made once, under a lock. A second pool would close connections that other
    threads are reading from when it is collected.
    """
    global _client
    with _client_lock:
        if _client is None:
            _client = redis.Redis.from_url(
                settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2
            )
        return _client

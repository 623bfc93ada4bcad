"""The connection pool to the broker with which a process publishes and counts."""

import redis
from django.conf import settings

BROKER = redis.Redis.from_url(
    settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2
)
"""It connects at its first use."""

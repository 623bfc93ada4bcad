"""The lease that decides which of several ingests publishes and writes."""

import secrets
import time

from redis import Redis

LEASE_KEY = "telemetry.ingest.lease"
LEASE_SECONDS = 3.0

_TAKE = """
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] or not holder then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return 1
end
return 0
"""
_GIVE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 0
"""


class Lease:
    """A right that expires when its holder falls silent.

    It counts from before the request was sent, so that a holder stops using it before
    the server can give it to another process.
    """

    def __init__(self, redis: Redis, *, key: str = LEASE_KEY) -> None:
        self._redis = redis
        self._key = key
        self._name = secrets.token_hex(8)
        self._until = float("-inf")

    @property
    def held(self) -> bool:
        """Whether this process holds it at this moment."""
        return time.monotonic() < self._until

    def acquire(self) -> bool:
        """Take or prolong it. Return False while another process holds it."""
        asked_at = time.monotonic()
        milliseconds = int(LEASE_SECONDS * 1000)
        got = self._redis.eval(_TAKE, 1, self._key, self._name, milliseconds)
        self._until = asked_at + LEASE_SECONDS if got else float("-inf")
        return bool(got)

    def release(self) -> None:
        """Give it back, so that a successor need not wait."""
        self._until = float("-inf")
        self._redis.eval(_GIVE, 1, self._key, self._name)

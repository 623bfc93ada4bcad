"""One process at a time: a mark in the broker that only its holder takes away."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import redis
from redis.exceptions import LockNotOwnedError
from redis.lock import Lock

from telemetry.live.broker_client import BROKER


@contextmanager
def turn(
    name: str, *, seconds: float, rests: int = 0, client: redis.Redis = BROKER
) -> Iterator[bool]:
    """Take a turn. False: another process has it.

    A run that takes longer than ``seconds`` loses its turn. It does not end the turn of
    the process that has it then.

    Args:
        name: key of the mark in the broker.
        seconds: after which the mark ends if its process died.
        rests: how many times as long as the run nobody has a turn afterwards, in whole
            seconds.

    Raises:
        redis.RedisError: the broker does not answer.
    """
    mark = Lock(client, name, timeout=seconds, thread_local=False)
    if not mark.acquire(blocking=False):
        yield False
        return
    begun = time.monotonic()
    try:
        yield True
    finally:
        with suppress(LockNotOwnedError):
            # 0 s removes the mark at once.
            rest = int(rests * (time.monotonic() - begun))
            mark.extend(rest, replace_ttl=True)

"""Streams of nodes, bounded in bytes: one node must not fill the broker.

The number of entries is bounded elsewhere, but a node may send large ones. A
broker that is full refuses every other node and every task, and what filled it
stays. Cutting needs no memory, so it works on a full broker too.
"""

from collections.abc import Iterable

from redis import Redis

STREAM_MOST_BYTES = 16 * 2**20
"""An honest node's hour of samples is a few MiB."""
LEFT_OF_A_FLOOD = (200, 10, 0)
"""Entries that are left, the newest, of a stream that is too large: the first
number with which it no longer is."""


def cut_floods(redis: Redis, keys: Iterable[str]) -> list[str]:
    """Cut streams that take too much of the broker's memory; which ones were."""
    return [key for key in keys if _cut(redis, key)]


def _cut(redis: Redis, key: str) -> bool:
    if _bytes_of(redis, key) <= STREAM_MOST_BYTES:
        return False
    for entries in LEFT_OF_A_FLOOD:
        redis.xtrim(key, maxlen=entries, approximate=False)
        if _bytes_of(redis, key) <= STREAM_MOST_BYTES:
            break
    return True


def _bytes_of(redis: Redis, key: str) -> int:
    # SAMPLES 0: all of it; a few large entries must not hide among small ones.
    return int(redis.memory_usage(key, samples=0) or 0)  # type: ignore[arg-type]

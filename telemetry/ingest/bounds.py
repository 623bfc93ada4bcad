"""Bounds on a node's keys on the broker: their types and their size.

Nodes are not trusted. A node's user may do little on the broker (deploy/acl.sh), but a
stream can hold large entries, and an older line of users.acl allowed more. A full
broker refuses every other node and every task until there is room again. A key of the
wrong type breaks every command that reads it together with others.

Trimming and deleting need no memory, so they work on a full broker too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from redis import Redis

from telemetry.protocol.units import MIB_BYTES, format_bytes

STREAM_MOST_BYTES = 16 * MIB_BYTES
"""An hour of samples of an honest node is a few MiB."""
NODE_MOST_BYTES = 40 * MIB_BYTES
"""All keys of one node together."""
LEFT_OF_A_FLOOD = (200, 10, 0)
"""How many of the newest entries of an oversized stream to keep. The first number that
makes it small enough is used."""
GROWTH_BYTES = 16 * MIB_BYTES
"""The keys are checked when the broker has grown by this much."""

KEYS: Mapping[str, str] = {
    "raw.": "stream",
    "facts.": "stream",
    "log.": "stream",
    "node.": "list",
    "_kombu.binding.node.": "set",
    "_kombu.binding_permanent.node.": "set",
    # Written by workers of older versions, with the rights of their users.acl.
    "unacked.": "hash",
    "unacked_index.": "zset",
    "unacked_mutex.": "string",
}
"""Prefix of each key that a node's user may ever have written, and its type."""


@dataclass(frozen=True, slots=True)
class Misuse:
    """A misuse of the broker, which was corrected."""

    node: str
    what: str
    """For the operator: which key, and what was done."""


@dataclass(frozen=True, slots=True)
class _Key:
    name: str
    wanted: str
    type: str
    size: int
    """Bytes."""


class StreamBounds:
    """Keeps every node's keys within its share of the broker's memory."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._used_bytes = 0

    def grown(self) -> bool:
        """Return whether the broker has grown much since the last check."""
        used = self._memory_used()
        if used < self._used_bytes:
            self._used_bytes = used
        return used > self._used_bytes + GROWTH_BYTES

    def enforce(self, nodes: Iterable[str]) -> list[Misuse]:
        """Check all keys of these nodes. Return the corrected misuses."""
        names = list(nodes)
        found = [
            misuse
            for node, keys in zip(names, self._keys_of(names), strict=True)
            for misuse in self._enforce_node(node, keys)
        ]
        self._used_bytes = self._memory_used()
        return found

    def _enforce_node(self, node: str, keys: list[_Key]) -> Iterable[Misuse]:
        room = NODE_MOST_BYTES
        for key in sorted(keys, key=lambda key: key.size):
            if key.type != key.wanted:
                self._redis.unlink(key.name)
                yield Misuse(
                    node, f"{key.name} was a {key.type}, not a {key.wanted}: deleted"
                )
                continue
            size, most = key.size, min(room, STREAM_MOST_BYTES)
            if size > most:
                size = self._shorten_key(key, most)
                yield Misuse(node, f"{key.name} held {format_bytes(key.size)}: cut")
            room -= size

    def _shorten_key(self, key: _Key, most: int) -> int:
        """Shorten a key to so many bytes. Return how many are left of it."""
        if key.wanted != "stream":
            self._redis.unlink(key.name)
            return 0
        size = key.size
        for entries in LEFT_OF_A_FLOOD:
            self._redis.xtrim(key.name, maxlen=entries, approximate=False)
            size = int(self._redis.memory_usage(key.name, samples=0) or 0)  # type: ignore[arg-type]
            if size <= most:
                break
        return size

    def _keys_of(self, nodes: list[str]) -> list[list[_Key]]:
        with self._redis.pipeline(transaction=False) as pipe:
            for node in nodes:
                for prefix, wanted in KEYS.items():
                    pipe.type(prefix + node)
                    # SAMPLES 0 measures all entries, so that a few large ones cannot
                    # hide among small ones.
                    pipe.memory_usage(
                        prefix + node, samples=0 if wanted == "stream" else 100
                    )
            answers = iter(pipe.execute())
        found = []
        for node in nodes:
            keys = [
                _Key(prefix + node, wanted, next(answers).decode(), next(answers) or 0)
                for prefix, wanted in KEYS.items()
            ]
            found.append([key for key in keys if key.type != "none"])
        return found

    def _memory_used(self) -> int:
        return int(self._redis.info("memory")["used_memory"])  # type: ignore[index]

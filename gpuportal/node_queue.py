"""How a node's worker takes commands from the broker with as few rights as possible.

A node's broker user may take from its own queue (BRPOP, RPOP, LLEN) and append to its
own streams. kombu's Redis transport wants more: it keeps unacknowledged messages in
separate keys, guards them by a lock written in Lua, and writes the binding of the
queue. A node that may run Lua can stop the broker for everybody, so this transport
does without:

* Messages are not kept until they are acknowledged. The web sends a command again that
  a dying worker took (placement/jobs/tick/job_tick.py).
* The binding is written by the web, which sends the commands.
"""

from typing import Any

from kombu import transport
from kombu.transport import redis

SCHEMES = ("redis", "rediss")


class NodeChannel(redis.Channel):
    """A channel that takes messages from queues and writes no keys."""

    ack_emulation = False

    def _queue_bind(self, *_args: Any) -> None:
        """Do nothing: the web writes the binding."""

    def _size(self, queue: str) -> int:
        """Return how many messages wait, without a transaction."""
        with self.conn_or_acquire() as client:
            return int(client.llen(queue))

    def _restore(self, message: Any, leftmost: bool = False) -> None:
        """Drop a command that was not begun. The web sends it again."""


class Transport(redis.Transport):
    """kombu's Redis transport with this channel."""

    Channel = NodeChannel


def use_for_every_connection() -> None:
    """Let kombu choose this transport for every address of Redis in this process."""
    for scheme in SCHEMES:
        transport.TRANSPORT_ALIASES[scheme] = f"{__name__}:{Transport.__name__}"

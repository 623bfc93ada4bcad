"""Turns to keep a long message of a workspace's program in memory.

A websocket's message reaches the browser whole, so the web process keeps it until its
last byte has arrived. A message of more than `FREE_BYTES` needs a turn. A websocket
that waits for one reads nothing, and the credit of its stream stops the program.

The numbers count for one web process.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary, WeakValueDictionary

from placement.access.access_target import AccessTarget
from placement.protocol.stream_refusal import StreamRefused
from telemetry.protocol.sentences import sentence

FREE_BYTES = 512 * 1024
"""Bytes of its program's messages that a websocket may keep without a turn."""
TURNS_OF_USER = 2
TURNS_OF_NODE = 8
TURN_SECONDS = 120.0
"""How long a message may take from its turn until the browser has it."""

_Turns = WeakValueDictionary[tuple[str, str | int], asyncio.Semaphore]
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = WeakKeyDictionary()


@asynccontextmanager
async def message_turn(target: AccessTarget) -> AsyncIterator[None]:
    """Wait for a turn of a user at a node, and keep it for the block.

    Raises:
        StreamRefused: the block takes longer than `TURN_SECONDS`.
    """
    known = _turns.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    # Everybody waits for the user's turn first, so no two wait for each other.
    of_user = known.setdefault(
        ("user", target.user_pk), asyncio.Semaphore(TURNS_OF_USER)
    )
    of_node = known.setdefault(("node", target.node), asyncio.Semaphore(TURNS_OF_NODE))
    async with of_user, of_node:
        try:
            async with asyncio.timeout(TURN_SECONDS):
                yield
        except TimeoutError:
            raise StreamRefused(
                "stream-lost",
                sentence("A message of the workspace took more than two minutes."),
            ) from None

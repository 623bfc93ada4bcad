"""Watch whether a connection to a node may go on."""

import asyncio
from collections.abc import Awaitable, Callable

from channels.db import database_sync_to_async
from django.utils import timezone

from placement.access.access_target import AccessTarget

RECHECK_SECONDS = 5.0


async def until_access_ends(
    target: AccessTarget,
    find: Callable[[], AccessTarget],
    look: Callable[[AccessTarget], Awaitable[None]] | None = None,
) -> None:
    """Check access every few seconds and when the reservation ends. Never returns.

    Args:
        target: the target at the start of the connection.
        find: reads it from the database again, in a thread.
        look: is called with the target at the start and after each check.

    Raises:
        CodedError: of ``find``, when the user may no longer be connected.
    """
    while True:
        if look is not None:
            await look(target)
        left_seconds = (target.until - timezone.now()).total_seconds()
        await asyncio.sleep(min(RECHECK_SECONDS, max(0.1, left_seconds)))
        target = await database_sync_to_async(find)()

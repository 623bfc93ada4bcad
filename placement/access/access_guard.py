"""Watch whether a connection to a node may go on."""

import asyncio
from collections.abc import Callable

from channels.db import database_sync_to_async
from django.utils import timezone

from placement.access.access_target import AccessTarget

RECHECK_SECONDS = 5.0


async def until_access_ends(
    target: AccessTarget, find: Callable[[], AccessTarget]
) -> None:
    """Return never; look every few seconds and when the reservation ends.

    Args:
        target: what was found when the connection began.
        find: finds it again by the rows of now, in a thread.

    Raises:
        CodedError: what ``find`` raises when the user may no longer be connected.
    """
    while True:
        left_seconds = (target.until - timezone.now()).total_seconds()
        await asyncio.sleep(min(RECHECK_SECONDS, max(0.1, left_seconds)))
        target = await database_sync_to_async(find)()

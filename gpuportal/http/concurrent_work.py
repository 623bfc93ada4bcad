"""Work that runs side by side for one connection, such as its two directions."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def until_first_ends(*works: Coroutine[Any, Any, Any]) -> None:
    """Run all of them until one ends, then cancel the others and wait for their end.

    Raises:
        BaseException: what the one that ended raises.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

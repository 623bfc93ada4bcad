"""The Job's socket: where it stands and what it prints, as it happens."""

import asyncio
from typing import Any

from channels.db import database_sync_to_async

from placement import live, logs
from placement.models import Job
from reservations.consumers import SessionConsumer
from reservations.models import User

SEND_SECONDS = 10.0
TOO_SLOW = 4408


class JobConsumer(SessionConsumer):
    """`/ws/jobs/<id>/`: for the owner, heads of the charged Account, the operator.

    A browser that takes nothing for ten seconds is let go and comes back by
    itself; until then at most the channel layer's own bounded queue waits.
    """

    def admit(self, user: User) -> frozenset[str] | None:
        """Return the Job's group, or None where the Job is not theirs to see."""
        job_id = self.job_id
        if not Job.objects.visible_to(user).filter(pk=job_id).exists():
            return None
        return frozenset({live.group_of(job_id)})

    @property
    def job_id(self) -> int:
        """The Job of the address."""
        return int(self.scope["url_route"]["kwargs"]["pk"])

    async def welcome(self) -> None:
        """Send where the Job stands, and the end of its log."""
        for message in await database_sync_to_async(self._present)():
            await self.pass_on(message)

    def _present(self) -> list[dict[str, Any]]:
        job = Job.objects.filter(pk=self.job_id).first()
        if job is None:
            return []
        messages: list[dict[str, Any]] = [dict(live.job_message(job))]
        piece = logs.tail(job)
        if piece.bytes:
            tail = live.JobLog(
                type="job.log",
                attempt=job.attempt,
                offset=piece.offset,
                bytes=piece.bytes,
                data=piece.data,
            )
            messages.append(dict(tail))
        return messages

    async def job_changed(self, event: dict[str, Any]) -> None:
        """Pass on `job.changed` (placement/live.py)."""
        await self.pass_on(event)

    async def job_log(self, event: dict[str, Any]) -> None:
        """Pass on `job.log` (placement/live.py)."""
        await self.pass_on(event)

    async def pass_on(self, message: dict[str, Any]) -> None:
        """Send one message; a browser that does not take it is let go."""
        try:
            # Not wait_for: before Python 3.12 it may swallow a cancel.
            async with asyncio.timeout(SEND_SECONDS):
                await self.send_json(message)
        except TimeoutError:
            await self.close(code=TOO_SLOW)

"""The websocket of a Job: its state and its log, live."""

import asyncio
from typing import Any

from channels.db import database_sync_to_async

from placement.jobs import job_broadcast
from placement.jobs.nodes import log_store
from placement.models import Job
from reservations.models import User
from reservations.web.session_consumer import SessionConsumer

SEND_SECONDS = 10.0
TOO_SLOW = 4408


class PatientConsumer(SessionConsumer):
    """A socket that disconnects a browser which reads nothing for ten seconds."""

    async def pass_on(self, message: dict[str, Any]) -> None:
        """Send one message. A browser that does not read it is disconnected."""
        try:
            # Not wait_for: before Python 3.12 it may swallow a cancel.
            async with asyncio.timeout(SEND_SECONDS):
                await self.send_json(message)
        except TimeoutError:
            await self.close(code=TOO_SLOW)


class JobConsumer(PatientConsumer):
    """`/ws/jobs/<id>/`: for the owner, heads of the charged Account, the operator.

    A browser that reads nothing for ten seconds is disconnected and reconnects later.
    Until then at most the channel layer's bounded queue waits.
    """

    def admit(self, user: User) -> frozenset[str] | None:
        """Return the Job's group. None: the User may not see the Job."""
        job_id = self.job_id
        if not Job.objects.visible_to(user).filter(pk=job_id).exists():
            return None
        return frozenset({job_broadcast.group_of(job_id)})

    @property
    def job_id(self) -> int:
        """The Job in the address."""
        return int(self.scope["url_route"]["kwargs"]["pk"])

    async def welcome(self) -> None:
        """Send the Job's state, and the end of its log."""
        for message in await database_sync_to_async(self._present)():
            await self.pass_on(message)

    def _present(self) -> list[dict[str, Any]]:
        job = Job.objects.filter(pk=self.job_id).first()
        if job is None:
            return []
        messages: list[dict[str, Any]] = [dict(job_broadcast.job_message(job))]
        piece = log_store.tail(job)
        if piece.bytes:
            tail = job_broadcast.JobLog(
                type="job.log",
                attempt=job.attempt,
                offset=piece.offset,
                bytes=piece.bytes,
                data=piece.data,
                part=0,
            )
            messages.append(dict(tail))
        return messages

    async def job_changed(self, event: dict[str, Any]) -> None:
        """Pass on `job.changed` (placement/jobs/job_broadcast.py)."""
        await self.pass_on(event)

    async def job_log(self, event: dict[str, Any]) -> None:
        """Pass on `job.log` (placement/jobs/job_broadcast.py)."""
        await self.pass_on(event)

    async def job_progress(self, event: dict[str, Any]) -> None:
        """Pass on `job.progress` (placement/jobs/job_broadcast.py)."""
        await self.pass_on(event)


class JobsConsumer(PatientConsumer):
    """`/ws/jobs/`: reports changes of Jobs in a list, and their progress."""

    def admit(self, user: User) -> frozenset[str]:
        """Admit owners, heads of their Accounts, and operators."""
        if user.is_operator:
            return frozenset({job_broadcast.ALL_JOBS})
        headed = user.memberships.filter(is_head=True, active=True)
        accounts = headed.values_list("account_id", flat=True)
        return frozenset(
            {
                job_broadcast.owner_group(user.pk),
                *map(job_broadcast.account_group, accounts),
            }
        )

    async def jobs_changed(self, event: dict[str, Any]) -> None:
        """Pass on `jobs.changed` (placement/jobs/job_broadcast.py)."""
        await self.pass_on(event)

    async def job_progress(self, event: dict[str, Any]) -> None:
        """Pass on `job.progress` (placement/jobs/job_broadcast.py)."""
        await self.pass_on(event)

"""The Job's socket: where it stands and what it prints, as it happens."""

import asyncio
from collections.abc import Mapping
from typing import Any

from channels.db import database_sync_to_async
from django.utils import timezone

from placement.jobs import job_broadcast
from placement.jobs.nodes import log_store
from placement.models import Job, Refinement
from placement.planner.symbolic.case import MAX_NAMES, MAX_RANK, Adapter
from placement.planner.values.errors import BadInput
from placement.planner.values.workload import Workload
from placement.plans import refinement
from placement.plans.refinement import cancel_refinement
from placement.tasks import refine
from reservations.consumers import SessionConsumer
from reservations.models import User
from reservations.rules.errors import BookingError
from reservations.web.rate_limits import check_rate
from telemetry.protocol.sentences import sentence

SEND_SECONDS = 10.0
TOO_SLOW = 4408
REFINEMENTS_PER_MINUTE = 30


class PatientConsumer(SessionConsumer):
    """A socket that lets a browser go which takes nothing for ten seconds."""

    async def pass_on(self, message: dict[str, Any]) -> None:
        """Send one message; a browser that does not take it is let go."""
        try:
            # Not wait_for: before Python 3.12 it may swallow a cancel.
            async with asyncio.timeout(SEND_SECONDS):
                await self.send_json(message)
        except TimeoutError:
            await self.close(code=TOO_SLOW)


class PlanConsumer(PatientConsumer):
    """`/ws/plans/`: asks for symbolic Estimates and hears how they come along.

    The page sends {"refine": {"known" or "model", "workload", "replicas", for LoRA
    "lora_rank" and "lora_targets"}} and is told `refinement.changed` at once and at
    every change; {"cancel": key} ends one's own.
    What cannot be asked is answered with {"type": "refinement.refused", "problems"}.
    Only the last one asked for is followed: the form moves on.
    """

    followed: str = ""

    def admit(self, user: User) -> frozenset[str]:
        """The group of what this page asked for; anybody signed in may ask."""
        key = self.followed
        return frozenset({job_broadcast.refinement_group(key)} if key else ())

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        """One question or one cancel."""
        if self.user is None or not isinstance(content, dict):
            return
        try:
            if "refine" in content:
                await self.ask(content["refine"])
            elif isinstance(content.get("cancel"), str):
                key = content["cancel"][:64]
                await database_sync_to_async(self.cancel)(key)
        except BadInput as error:
            await self.refuse(error.problems)
        except BookingError as error:
            await self.refuse({"refine": error.text()})

    async def ask(self, asked: Any) -> None:
        """Start or find a Refinement, join its group, say where it stands."""
        row, fresh = await database_sync_to_async(self.begin)(asked)
        self.followed = row.key
        # Joined before the worker is told: nothing it says can be missed.
        if not await self.authorise():
            return
        if fresh:
            await asyncio.to_thread(refine.delay, row.pk)
        message = await database_sync_to_async(self.standing)(row.pk)
        if message is not None:
            await self.pass_on(message)

    def begin(self, asked: Any) -> tuple[Refinement, bool]:
        """Check a question and keep it.

        Raises:
            BadInput: by field.
            TooFast: too many in this minute.
        """
        if not isinstance(asked, Mapping):
            raise BadInput({"refine": sentence("must be an object")})
        assert self.user is not None
        now = timezone.now()
        model, replicas = asked.get("model"), asked.get("replicas", 1)
        if model is not None and (type(model) is not int or not 0 < model < 2**62):
            raise BadInput({"model": sentence("must be the number of an upload")})
        if type(replicas) is not int or not 1 <= replicas <= 2**14:
            raise BadInput({"replicas": sentence("must be a whole number from 1")})
        check_rate(
            "refine",
            user_pk=self.user.pk,
            per_minute=REFINEMENTS_PER_MINUTE,
            now=now,
        )
        return refinement.refine(
            user=self.user,
            well_known=str(asked.get("known") or "")[:80],
            model_id=model,
            workload=Workload.from_json(asked.get("workload") or {}),
            replicas=replicas,
            adapter=adapter_of(asked),
            now=now,
        )

    def cancel(self, key: str) -> None:
        """End one's own Refinement. Raises NotFound."""
        assert self.user is not None
        cancel_refinement(user=self.user, key=key, now=timezone.now())

    def standing(self, refinement_id: int) -> dict[str, Any] | None:
        """Where a Refinement stands now."""
        row = Refinement.objects.filter(pk=refinement_id).first()
        return None if row is None else dict(job_broadcast.refinement_message(row))

    async def refuse(self, problems: Mapping[str, str]) -> None:
        """Say by field what cannot be asked."""
        await self.pass_on({"type": "refinement.refused", "problems": dict(problems)})

    async def refinement_changed(self, event: dict[str, Any]) -> None:
        """Pass on `refinement.changed` (placement/jobs/job_broadcast.py)."""
        if event["refinement"]["key"] == self.followed:
            await self.pass_on(event)


def adapter_of(asked: Mapping[str, Any]) -> Adapter | None:
    """Return the adapters that a question names; None: none.

    Raises:
        BadInput: by field.
    """
    rank, targets = asked.get("lora_rank", 0), asked.get("lora_targets", [])
    if type(rank) is not int or not 0 <= rank <= MAX_RANK:
        raise BadInput(
            {
                "lora_rank": sentence(
                    "must be a whole number from 0 to {max_rank}",
                    max_rank=f"{MAX_RANK:,}",
                )
            }
        )
    named = isinstance(targets, list) and 0 < len(targets) <= MAX_NAMES
    if rank and not (named and all(isinstance(one, str) for one in targets)):
        raise BadInput({"lora_targets": sentence("must name linear layers")})
    return Adapter(rank=rank, targets=tuple(targets)) if rank else None


class JobConsumer(PatientConsumer):
    """`/ws/jobs/<id>/`: for the owner, heads of the charged Account, the operator.

    A browser that takes nothing for ten seconds is let go and comes back by
    itself; until then at most the channel layer's own bounded queue waits.
    """

    def admit(self, user: User) -> frozenset[str] | None:
        """Return the Job's group, or None where the Job is not theirs to see."""
        job_id = self.job_id
        if not Job.objects.visible_to(user).filter(pk=job_id).exists():
            return None
        return frozenset({job_broadcast.group_of(job_id)})

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
    """`/ws/jobs/`: that some Job of one's list moved, and how far each is."""

    def admit(self, user: User) -> frozenset[str]:
        """One's own, those of Accounts one heads; the operator hears of all."""
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

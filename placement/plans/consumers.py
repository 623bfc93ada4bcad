"""`/ws/plans/`: symbolic Estimates of the plan page, as they come along."""

import asyncio
from collections.abc import Mapping
from typing import Any

from channels.db import database_sync_to_async
from django.utils import timezone

from placement.jobs import job_broadcast
from placement.jobs.consumers import PatientConsumer
from placement.models import Refinement
from placement.planner.search.card_support import completed_workload
from placement.planner.symbolic.case import MAX_NAMES, MAX_RANK, Adapter
from placement.planner.values.errors import BadInput
from placement.plans import refinement
from placement.plans.available_gpus import site_cards
from placement.plans.refinement import cancel_refinement
from placement.plans.tasks import refine
from reservations.models import User
from reservations.web.rate_limits import check_rate
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import sentence
from telemetry.web.error_answers import message_of

REFINEMENTS_PER_MINUTE = 30


class PlanConsumer(PatientConsumer):
    """`/ws/plans/`: requests symbolic Estimates and receives their progress.

    The page sends {"refine": {"known" or "model", "workload", "replicas", for LoRA
    "lora_rank" and "lora_targets"}} and receives `refinement.changed` at once and at
    every change. {"cancel": key} ends a Refinement of the User.
    An invalid request is answered with {"type": "refinement.refused", "problems"}.
    Only the last request is followed, because the form has changed since the earlier
    ones.
    """

    followed: str = ""

    def admit(self, user: User) -> frozenset[str]:
        """Join the group of this page's request. Every signed-in User may request."""
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
        except CodedError as error:
            await self.refuse(error.fields or {"refine": message_of(error)})

    async def ask(self, asked: Any) -> None:
        """Start or find a Refinement, join its group, say where it stands."""
        row, fresh = await database_sync_to_async(self.begin)(asked)
        self.followed = row.key
        # Joined before the worker starts, so no message can be missed.
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
            workload=completed_workload(asked.get("workload") or {}, site_cards()),
            replicas=replicas,
            adapter=adapter_of(asked),
            now=now,
        )

    def cancel(self, key: str) -> None:
        """End a Refinement of the User. Raises NotFound."""
        assert self.user is not None
        cancel_refinement(user=self.user, key=key, now=timezone.now())

    def standing(self, refinement_id: int) -> dict[str, Any] | None:
        """Where a Refinement stands now."""
        row = Refinement.objects.filter(pk=refinement_id).first()
        return None if row is None else dict(job_broadcast.refinement_message(row))

    async def refuse(self, problems: Mapping[str, str]) -> None:
        """Send the problems of the request, by field."""
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

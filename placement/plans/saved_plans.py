"""Saved Plans: links to them, copies of them, bookings of their Gpus."""

import io
import secrets
import zipfile
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from placement.models import StoredPlan
from placement.planner.launch.files import LaunchFiles
from placement.planner.values.errors import BadInput
from placement.planner.values.plan import Plan
from placement.plans.available_gpus import offered
from placement.plans.service import earliest_start, forget_old_plans
from reservations.booking.service import book
from reservations.models import Membership, Reservation, User
from telemetry.models import Gpu
from telemetry.protocol.sentences import sentence

LINK_BYTES = 24


def visible_plan(user: User, plan_id: int, key: str = "") -> StoredPlan | None:
    """Return a saved Plan if this User may see it, else None.

    Allowed are its owner, heads of the owner's Accounts, operators, and signed-in Users
    with the link until the owner revokes it.
    """
    seen = StoredPlan.objects.visible_to(user).filter(pk=plan_id).first()
    if seen is not None or not key:
        return seen
    row = StoredPlan.objects.filter(pk=plan_id).exclude(link_key="").first()
    if row is not None and secrets.compare_digest(
        row.link_key.encode(), key.encode(errors="replace")
    ):
        return row
    return None


def set_link(*, plan: StoredPlan, shared: bool) -> str:
    """Create or revoke the link to a Plan of the User. Return its key or "".

    A revoked link never works again, because the next one has another key.
    """
    with transaction.atomic(durable=True):
        row = StoredPlan.objects.select_for_update().get(pk=plan.pk)
        if shared != bool(row.link_key):
            row.link_key = secrets.token_urlsafe(LINK_BYTES) if shared else ""
            row.save(update_fields=["link_key"])
    return row.link_key


def own_copy(*, user: User, plan: StoredPlan, now: datetime) -> StoredPlan:
    """Return the User's own Plan: this one, or a copy of another's."""
    if plan.owner_id == user.pk:
        return plan
    with transaction.atomic(durable=True):
        kept = StoredPlan.objects.create(
            owner=user,
            title=plan.title,
            spec=plan.spec,
            workload=plan.workload,
            plan=plan.plan,
            address=plan.address,
            created_at=now,
        )
        forget_old_plans(user)
    return kept


@dataclass(frozen=True)
class PlanStarts:
    """When a Plan could start, by the calendar. None: not within its horizon."""

    own: datetime | None
    """On exactly its Gpus."""
    other: datetime | None = None
    """Sooner, on other suitable Gpus."""
    other_gpus: tuple[str, ...] = ()


def starts_of(plan: Plan, *, hours: float, now: datetime) -> PlanStarts:
    """Return the earliest start on a Plan's own Gpus, and a sooner one elsewhere.

    Raises:
        WorkloadInvalid: hours out of range.
    """
    first = earliest_start(plan=plan, at=None, hours=hours, now=now)
    if first is None:
        return PlanStarts(None)
    if first.same:
        return PlanStarts(first.window.start)
    own = earliest_start(plan=plan, at=None, hours=hours, now=now, same_gpus=True)
    mine = own.window.start if own is not None else None
    if mine is not None and mine <= first.window.start:
        return PlanStarts(mine)
    return PlanStarts(mine, first.window.start, tuple(g.gpu.label for g in first.gpus))


def book_plan(
    *,
    user: User,
    membership: Membership | None,
    plan: StoredPlan,
    at: datetime | None,
    hours: float,
    now: datetime,
) -> Reservation:
    """Book a Plan's Gpus from a time for this many hours. None: from now.

    Raises:
        BadInput: a Gpu of it is gone, or hours are out of range.
        Refusal, NotAllowed: by the calendar.
    """
    window = offered(user=user, at=at, hours=hours, now=now)
    uuids = Plan.from_json(plan.plan).gpu_uuids
    known = dict(Gpu.objects.filter(uuid__in=uuids).values_list("uuid", "pk"))
    gone = [uuid for uuid in uuids if uuid not in known]
    if gone:
        raise BadInput(
            {
                "gpus": sentence(
                    "{gone} of its GPUs are no longer in the portal", gone=len(gone)
                )
            }
        )
    return book(
        user=user,
        membership=membership,
        gpu_ids=[known[uuid] for uuid in uuids],
        start=window.start,
        end=window.end,
        purpose=plan.title[:120],
        now=now,
    )


def plan_archive(made: LaunchFiles) -> bytes:
    """Return the archive. The same Plan gives the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in made.files:
            entry = zipfile.ZipInfo(file.name)
            entry.external_attr = (0o755 if file.name.endswith(".sh") else 0o644) << 16
            archive.writestr(entry, file.text, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()

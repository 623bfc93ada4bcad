"""Jobs in gaps for pages and programs."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict

from django.db.models import F, OuterRef, QuerySet, Subquery

from placement.jobs.queries import iso
from placement.models import Backfill, Job
from placement.rules.backfill_rules import GapState
from reservations.models import User
from telemetry.web.answer_types import UtcInstant

MOST_ROWS = 100
MOST_STRETCHES = 50


@dataclass(frozen=True)
class GapRow:
    """One Job that waits for a gap or runs in one, for the list of Jobs."""

    row: Backfill
    place: int | None
    """Its position among the waiting ones, oldest first. None: it does not wait."""
    may_stop: bool


def gap_rows(user: User) -> list[GapRow]:
    """Return the live Jobs in gaps that a User may see, newest first."""
    return placed_rows(visible_gaps(user)[:MOST_ROWS], user)


def visible_gaps(user: User, *, live: bool = True) -> QuerySet[Backfill]:
    """Return the Jobs in gaps that a User may see, newest first."""
    rows = Backfill.objects.visible_to(user)
    if live:
        rows = rows.live()
    found: QuerySet[Backfill] = with_last_job(
        rows.select_related("owner", "membership__account")
    )
    return found


def placed_rows(rows: Iterable[Backfill], user: User) -> list[GapRow]:
    """Return each Job in gaps with its place. Cost: one query."""
    ahead = list(
        Backfill.objects.filter(state=GapState.QUEUED)
        .order_by("created_at", "pk")
        .values_list("pk", flat=True)
    )
    places = {pk: number for number, pk in enumerate(ahead, start=1)}
    return [
        GapRow(row, places.get(row.pk), row.owner_id == user.pk or user.is_operator)
        for row in rows
    ]


def with_last_job(rows):  # type: ignore[no-untyped-def]
    """Add the number and the node of each row's last stretch."""
    last = Job.objects.filter(backfill=OuterRef("pk")).order_by("-pk")
    return rows.annotate(
        job_pk=Subquery(last.values("pk")[:1]),
        job_node=Subquery(last.values("node__name")[:1]),
        job_until=Subquery(last.values("reservation__end")[:1]),
    ).order_by(F("created_at").desc(), "-pk")


@dataclass(frozen=True)
class GapOf:
    """The Job in gaps of which a stretch is a part, for the stretch's page."""

    row: Backfill
    stretches: list[Job]
    """The newest ones, oldest first."""
    held_seconds: int
    """In all gaps together, including the present one."""

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self.row.state in GapState.live()


def gap_of(job: Job, *, now: datetime) -> GapOf | None:
    """Return the Job in gaps of which this Job is a stretch. None: it is no stretch."""
    row = job.backfill
    if row is None:
        return None
    newest = row.stretches.select_related("reservation").order_by("-pk")
    stretches = list(newest[:MOST_STRETCHES])[::-1]
    held = row.used_seconds
    if row.state in (GapState.RUNNING, GapState.STOPPING) and stretches:
        begun = stretches[-1].reservation.start
        held += max(0, int((now - begun).total_seconds()))
    return GapOf(row, stretches, held)


class GapAnswer(TypedDict):
    """A job that runs in gaps between reservations."""

    id: int
    name: str
    state: str
    """queued, running, stopping, done, failed or stopped."""
    reason: str
    owner: str
    """Login."""
    account: str
    """The group that pays."""
    gpus: int
    gpu_class: str
    """Empty: any."""
    min_memory_bytes: int
    shortest_seconds: int
    """The shortest useful stretch."""
    total_seconds: int | None
    """Of held time in total. Null: until it ends."""
    used_seconds: int
    attempt: int
    likely_at: UtcInstant | None
    """Estimated start of the next stretch. Null: unknown."""
    jobs: list[int]
    """Its stretches."""
    created_at: UtcInstant | None
    ended_at: UtcInstant | None


def gap_facts(row: Backfill, *, now: datetime) -> GapAnswer:
    """Return one in the form for programs."""
    likely = row.likely_at if row.state == GapState.QUEUED else None
    return {
        "id": row.pk,
        "name": row.name,
        "state": row.state,
        "reason": row.reason,
        "owner": row.owner.username,
        "account": str(row.membership.account),
        "gpus": row.gpu_count,
        "gpu_class": row.gpu_class,
        "min_memory_bytes": row.min_memory_bytes,
        "shortest_seconds": row.shortest_seconds,
        "total_seconds": row.total_seconds,
        "used_seconds": row.used_seconds,
        "attempt": row.attempt,
        # A gap whose estimated time has passed is not reported as near.
        "likely_at": iso(likely) if likely and likely > now else None,
        "jobs": list(row.stretches.order_by("pk").values_list("pk", flat=True)),
        "created_at": iso(row.created_at),
        "ended_at": iso(row.ended_at),
    }

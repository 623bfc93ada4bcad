"""Transfer of checkpoints from the nodes where a Job ended to those where it resumes.

The web requests a transfer when a resuming Job is due on other nodes. Each node that
has a part of the checkpoint uploads it, and the new nodes download all parts. If the
node stays the same, nothing is transferred. The size is bounded by the site's
``checkpoint_bytes``. The files are kept only until the next Job has begun.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q

from placement.jobs.nodes import checkpoint_store
from placement.models import CarriedCheckpoint, Job, PlacementPolicy
from placement.planner.values.errors import LaunchInvalid
from placement.planner.values.humanize import gib
from placement.protocol.rendezvous import StartCheckpoint
from reservations.models import User
from telemetry.models import Node
from telemetry.protocol.sentences import joined, sentence

State = CarriedCheckpoint.State
OPEN = (State.WANTED, State.COMING)
AGAIN_SECONDS = 20.0
MOST_ROWS = 200
MOST_REASON = 400


@dataclass(frozen=True, slots=True)
class Ready:
    """Whether a Job's checkpoint is where it can be fetched."""

    waits: str = ""
    refuses: str = ""


def allowed() -> bool:
    """Return whether the site allows transfers of checkpoints."""
    return PlacementPolicy.current().checkpoint_bytes > 0


def lock_previous_job(
    user: User, pk: int | None, node: Node, *, kind: str, recipe: str
) -> Job | None:
    """Return the Job that a new one resumes from. Call it in a transaction.

    Args:
        user: the owner of both.
        pk: the Job that ended; None: the new one starts from scratch.
        node: the node of the new Job.
        kind, recipe: the program of the new Job. A checkpoint fits only the program
            that wrote it.

    Raises:
        LaunchInvalid: the Job is another User's, still runs, ran another program, ran
            on another node while transfers are off, or was resumed already.
    """
    if pk is None:
        return None
    found: Job | None = Job.objects.filter(pk=pk, owner=user).first()
    found = None if found is None else handed_back(found)
    why = ""
    if found is None:
        why = sentence("there is no job #{pk} of yours", pk=pk)
    elif found.state in Job.State.live():
        why = sentence("job #{pk} has not ended", pk=pk)
    elif (found.kind, found.recipe) != (kind, recipe):
        why = sentence(
            "job #{pk} ran {old}, and this one runs {new}, which cannot read its "
            "checkpoint",
            pk=pk,
            old=_program(found.kind, found.recipe),
            new=_program(kind, recipe),
        )
    elif found.node_ids() != [node.pk] and not allowed():
        names = ", ".join(_names(found))
        why = sentence(
            "its checkpoint lies on {names}, this job runs on {node}",
            names=names,
            node=node.name,
        )
    elif Job.objects.filter(resume_from=found).exclude(_NEVER_BEGAN).exists():
        why = sentence(
            "job #{continued_by} has resumed from it already",
            continued_by=found.continued_by.pk,
        )
    if why:
        raise LaunchInvalid({"resume_from": why})
    Job.objects.filter(_NEVER_BEGAN, resume_from=found).update(resume_from=None)
    return found


def _program(kind: str, recipe: str) -> str:
    if kind == Job.Kind.RECIPE:
        return sentence("the recipe {recipe}", recipe=recipe)
    if kind in (Job.Kind.SERVE, Job.Kind.TEXT):
        return sentence("an endpoint")
    if kind == Job.Kind.WORKSPACE:
        return sentence("a workspace")
    return sentence("a script")


_NEVER_BEGAN = Q(started_at=None) & ~Q(state__in=sorted(Job.State.live()))


def handed_back(job: Job) -> Job:
    """Return the Job to resume from. For a Job that never began, its predecessor.

    The predecessor is then free for another Job. Call it in a transaction.
    """
    while (
        job.resume_from is not None
        and job.started_at is None
        and job.state not in Job.State.live()
    ):
        before = job.resume_from
        Job.objects.filter(pk=job.pk).update(resume_from=None, retries=0)
        job = before
    return job


def travels(job: Job) -> bool:
    """Return whether a Job's checkpoint has to come from nodes other than its own."""
    before = job.resume_from
    if before is None:
        return False
    there, here = before.node_ids(), job.node_ids()
    return len(there) > 1 or len(here) > 1 or there != here


def ready(job: Job, now: datetime) -> Ready:
    """Return whether a due Job's checkpoint is here. Request it if it is not."""
    before = job.resume_from
    if before is None or not travels(job):
        return Ready()
    if before.state in Job.State.live():
        return Ready(
            waits=sentence(
                "waits for job #{before} to end and then resumes from its checkpoint",
                before=before.pk,
            )
        )
    rows = list(before.carried.select_related("node"))
    if not rows or any(row.state == State.DROPPED for row in rows):
        if not allowed():
            return Ready(
                refuses=_refusal_text(
                    before,
                    sentence("and this site copies no checkpoints between nodes"),
                )
            )
        rows = _ask(before, now)
    for row in rows:
        if row.state == State.REFUSED:
            return Ready(refuses=_refusal_text(before, row.reason))
    coming = [row for row in rows if row.state in OPEN]
    if coming:
        return Ready(waits=_coming(before, coming))
    none = [row for row in rows if row.state == State.NONE]
    if none and len(none) < len(rows):
        names = ", ".join(row.node.name for row in none)
        return Ready(
            refuses=_refusal_text(
                before,
                sentence("and {names} does not have its part of it", names=names),
            )
        )
    return Ready()


def _refusal_text(before: Job, why: str) -> str:
    names = ", ".join(_names(before))
    words = sentence(
        "the checkpoint of job #{before} lies on {names}, {why}",
        before=before.pk,
        names=names,
        why=why,
    )
    return words if len(words) <= MOST_REASON else words[:MOST_REASON]


def _names(job: Job) -> list[str]:
    parts = job.parts.select_related("node")
    return [part.node.name for part in parts] or [job.node.name]


def _coming(before: Job, rows: list[CarriedCheckpoint]) -> str:
    names = ", ".join(row.node.name for row in rows)
    size = sum(row.size_bytes for row in rows)
    have = sum(row.have_bytes for row in rows)
    if size:
        names = f"{names} ({100 * have // size} %)"
    words = sentence(
        "waits for the checkpoint of job #{before} from {names}",
        before=before.pk,
        names=names,
    )
    said = joined([words, *(row.reason for row in rows if row.reason)], ": ")
    return said if len(said) <= MOST_REASON else said[:MOST_REASON]


@transaction.atomic
def _ask(before: Job, now: datetime) -> list[CarriedCheckpoint]:
    """Request each node's part, again if it was deleted meanwhile."""
    numbers = list(enumerate(before.node_ids()))
    CarriedCheckpoint.objects.bulk_create(
        (
            CarriedCheckpoint(job=before, number=number, node_id=node, asked_at=now)
            for number, node in numbers
        ),
        ignore_conflicts=True,
    )
    before.carried.filter(state=State.DROPPED).update(
        state=State.WANTED,
        asked_at=now,
        ordered_at=None,
        have_bytes=0,
        size_bytes=0,
        sha256="",
        reason="",
    )
    return list(before.carried.select_related("node"))


def start_checkpoints(job: Job) -> tuple[StartCheckpoint, ...]:
    """Return the checkpoints that a Job's nodes fetch before they start it."""
    if job.resume_from is None or not travels(job):
        return ()
    rows = job.resume_from.carried.filter(state=State.WHOLE)
    return tuple(
        StartCheckpoint(row.number, row.size_bytes, row.sha256) for row in rows
    )


# --- the tick ---------------------------------------------------------------------


def due(now: datetime) -> Iterable[CarriedCheckpoint]:
    """Return the transfers that have not begun and have no recent request."""
    before = now - timedelta(seconds=AGAIN_SECONDS)
    late = Q(ordered_at=None) | Q(ordered_at__lt=before) | Q(ordered_at__gt=now)
    rows = CarriedCheckpoint.objects.filter(late, state=State.WANTED)
    # As in RowSteps: the columns of all tables only if there are rows.
    if not rows.exists():
        return ()
    return rows.select_related("job__reservation", "node")[:MOST_ROWS]


def claim_transfer(row: CarriedCheckpoint, now: datetime) -> bool:
    """Mark one as ordered. False: another worker was first."""
    rows = CarriedCheckpoint.objects.filter(
        pk=row.pk, state=row.state, ordered_at=row.ordered_at
    )
    return rows.update(ordered_at=now) == 1


def delete_unneeded_bytes() -> int:
    """Delete checkpoints that are no longer needed: the next Job began or ended."""
    begun = Q(job__continued_by__started_at__isnull=False)
    over = Q(job__continued_by__ended_at__isnull=False)
    gone = Q(job__continued_by=None)
    rows = CarriedCheckpoint.objects.filter(begun | over | gone)
    rows = rows.exclude(state=State.DROPPED)
    done = 0
    if not rows.exists():
        return done
    for row in rows.select_related("job")[:MOST_ROWS]:
        if CarriedCheckpoint.objects.filter(pk=row.pk, state=row.state).update(
            state=State.DROPPED, have_bytes=0
        ):
            checkpoint_store.drop(row)
            done += 1
    return done


# --- uploads of nodes -----------------------------------------------------------------


def announce(
    row: CarriedCheckpoint,
    *,
    size_bytes: int,
    sha256: str,
    problem: str,
    unreadable: bool = False,
    now: datetime,
) -> str:
    """Store a node's announcement of its checkpoint; return why it is refused, or "".

    Args:
        problem: why the node has no checkpoint to upload; "": it has one.
        unreadable: the checkpoint exists but cannot be read, so no Job starts from
            scratch in its place.
    """
    most = PlacementPolicy.current().checkpoint_bytes
    why, state = problem, State.COMING
    if problem:
        state = State.REFUSED if unreadable else State.NONE
    if not problem and size_bytes > most:
        why = sentence(
            "it has {size}, and the limit for copying between nodes is {most}. Book "
            "on the same node to resume from it",
            size=gib(size_bytes),
            most=gib(most),
        )
        state = State.REFUSED
    same = (row.size_bytes, row.sha256) == (size_bytes, sha256)
    have = checkpoint_store.begin(row, same=same) if state == State.COMING else 0
    held = row.reason if state == State.COMING else ""  # until a piece has come
    if state == State.COMING and have == size_bytes:
        state, held = State.WHOLE, ""
    CarriedCheckpoint.objects.filter(pk=row.pk, state__in=OPEN).update(
        state=state,
        reason=why[:MOST_REASON] or held,
        size_bytes=size_bytes,
        sha256=sha256,
        have_bytes=have,
        whole_at=now if state == State.WHOLE else None,
    )
    return why


def held_up(rows: Q, why: str) -> None:
    """Record why checkpoints are delayed, and notify the waiting Jobs' owners."""
    waiting = CarriedCheckpoint.objects.filter(rows, state__in=OPEN)
    waiting.update(reason=why[:MOST_REASON])


def receive(row: CarriedCheckpoint, *, offset: int, data: bytes, now: datetime) -> int:
    """Store a piece. Return how many bytes are stored.

    Raises:
        LogConflict: another piece is next.
        OSError: it cannot be stored.
    """
    have = checkpoint_store.append(row, offset=offset, data=data)
    fields: dict[str, object] = {"have_bytes": have, "reason": ""}
    if have == row.size_bytes:
        fields |= {"state": State.WHOLE, "whole_at": now}
    CarriedCheckpoint.objects.filter(pk=row.pk, state=State.COMING).update(**fields)
    return have

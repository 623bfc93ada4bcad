"""Assign Gpus of a Reservation to its due Jobs, in the order of launch.

Jobs of one Reservation on one node wait in line. The first gets its Plan's Gpus, or as
many as it needs in the order of their index, once no other Job and no stranger is on
them. No Job overtakes, so that small Jobs do not starve a large one.

A terminal shares the Gpus with the other Jobs of its Reservation. It waits for none of
them, and none of them waits for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Q

from placement.jobs.predecessor import FREE
from placement.jobs.site_clock import clock_text
from placement.models import USES_GPUS, Job, JobPart
from placement.planner.launch.workspace_apps import TERMINAL
from reservations.booking.unclean_start import FOREIGN_RULES
from telemetry.models import Alert, Gpu
from telemetry.protocol.sentences import sentence

ON_NODE = tuple(sorted(Job.State.on_node()))
SHARES_GPUS = Q(workspace__app=TERMINAL)
"""Jobs that share the Gpus with the other Jobs of their Reservation."""


@dataclass(frozen=True, slots=True)
class JobTurn:
    """The Gpus of a due Job, or why it waits."""

    gpu_ids: tuple[int, ...] = ()
    """In the Job's own order."""
    waits: str = ""
    """Why it gets none yet. "": it may start."""


def gpus_for_due_job(job: Job, planned: Sequence[str]) -> JobTurn:
    """Return the Gpus for a due Job, or the reason why it waits.

    Args:
        planned: UUIDs of the Gpus of its Plan, by rank. Empty: it needs ``gpu_count``
            Gpus, or all of the Reservation on its node.
    """
    if not job.uses_gpus:
        return JobTurn()
    held = {gpu.uuid: gpu.pk for gpu in held_gpus(job)}
    if job.gpu_count is not None and job.gpu_count > len(held):
        return JobTurn(waits=_too_few(job, len(held)))
    shares = Job.objects.filter(SHARES_GPUS, pk=job.pk).exists()
    ahead = None if shares else _ahead(job)
    if ahead is not None:
        return JobTurn(
            waits=sentence(
                "waits for job {ahead}, which is ahead in the queue", ahead=ahead
            )
        )
    before = Job.objects.filter(moves__next_job=job, state__in=ON_NODE).first()
    if before is not None:
        return JobTurn(waits=_waits_for(before))
    taken = _jobs_on_gpus(job, set(held.values()), shares)
    wanted = [held[uuid] for uuid in planned if uuid in held] or list(held.values())
    strangers = _intruders(wanted)
    free = [pk for pk in wanted if pk not in taken and pk not in strangers]
    count = job.gpu_count if job.gpu_count and not planned else len(wanted)
    if len(free) >= count:
        return JobTurn(tuple(free[:count]))
    if not strangers.keys() <= taken.keys():
        where = ", ".join(name for pk, name in strangers.items() if pk not in taken)
        return JobTurn(
            waits=sentence(
                "waits until another person's process has left {where}", where=where
            )
        )
    first = min(taken[pk] for pk in wanted if pk in taken)
    other = Job.objects.select_related("reservation").get(pk=first)
    return JobTurn(
        waits=_waits_for(other, [pk for pk in wanted if taken.get(pk) == first])
    )


def held_gpus(job: Job) -> list[Gpu]:
    """Return the Reservation's Gpus on the Job's nodes, by index."""
    held = (
        job.reservation.allocations.filter(live=True, gpu__node_id__in=job.node_ids())
        .select_related("gpu")
        .order_by("gpu__index")
    )
    return [row.gpu for row in held]


def _waits_for(other: Job, gpu_ids: Sequence[int] = ()) -> str:
    """Return for which Job and Gpus it waits, and when that Job must end."""
    rows = Gpu.objects.filter(pk__in=gpu_ids or other.gpu_ids).select_related("node")
    names: dict[str, list[str]] = {}
    for gpu in rows.order_by("node__name", "index"):
        names.setdefault(gpu.node.name, []).append(str(gpu.index))
    where = "; ".join(f"{node} {', '.join(there)}" for node, there in names.items())
    end = clock_text(other.reservation.end)
    uses = where or sentence("the GPUs of {node}", node=other.node)
    return sentence(
        "waits for job {other}, which uses {uses} until {end} at the latest",
        other=other.pk,
        uses=uses,
        end=end,
    )


def _too_few(job: Job, held: int) -> str:
    return sentence(
        "needs {gpu_count} GPUs, but the reservation has {held} on {node} now",
        gpu_count=job.gpu_count,
        held=held,
        node=job.node.name,
    )


def _on_nodes(node_ids: Sequence[int]) -> Q:
    """Return a filter for Jobs on any of these nodes."""
    own = JobPart.objects.filter(node_id__in=node_ids).values("job")
    return Q(node_id__in=node_ids) | Q(pk__in=own)


def _ahead(job: Job) -> int | None:
    """Return a Job of the same Reservation and node that was launched before.

    One that waits for another Job is not in line yet.
    """
    earlier = Q(created_at__lt=job.created_at) | Q(
        created_at=job.created_at, pk__lt=job.pk
    )
    return (
        Job.objects.filter(
            earlier,
            FREE,
            USES_GPUS,
            _on_nodes(job.node_ids()),
            reservation_id=job.reservation_id,
            state=Job.State.QUEUED,
        )
        .exclude(SHARES_GPUS)
        .order_by("created_at", "pk")
        .values_list("pk", flat=True)
        .first()
    )


def _intruders(gpu_ids: Sequence[int]) -> dict[int, str]:
    """Return the Gpus that have an intruder's process, with the intruders' names.

    A Job that starts there would lack memory. It would also check in its holder, who is
    owed equal Gpus or a full refund (docs/design/fair-booking.md#rule-7).
    """
    rows = Alert.objects.open().filter(gpu__in=gpu_ids, rule__in=FOREIGN_RULES)
    found = rows.select_related("gpu__node").order_by("gpu__index")
    return {row.gpu_id: str(row.gpu) for row in found if row.gpu_id is not None}


def _jobs_on_gpus(job: Job, held: set[int], shares: bool) -> dict[int, int]:
    """Return the Job on each of these Gpus, of any Reservation.

    Jobs that share the Gpus with this one are left out.
    """
    found: dict[int, int] = {}
    beside = Q(reservation_id=job.reservation_id)
    others = (
        Job.objects.filter(_on_nodes(job.node_ids()), USES_GPUS, state__in=ON_NODE)
        .exclude(pk=job.pk)
        .exclude(beside if shares else beside & SHARES_GPUS)
        .prefetch_related("reservation__allocations")
    )
    for other in others:
        on = other.gpu_ids or [
            row.gpu_id for row in other.reservation.allocations.all()
        ]
        found |= {pk: other.pk for pk in on if pk in held}
    return found

"""The possible places of an endpoint, and the change of its Reservation."""

from dataclasses import dataclass
from datetime import datetime

from placement.models import Endpoint, Job
from placement.planner.values.gpu_availability import GpuOffer
from placement.plans.available_gpus import AvailableGpus, offered
from placement.serving.rules import best_offer
from placement.serving.serving_refusals import CannotMove, FitsNowhere
from reservations.booking.relocation import relocate_rest
from reservations.booking.service import book
from reservations.models import Reservation, User
from telemetry.protocol.sentences import sentence


@dataclass(frozen=True)
class EndpointPlace:
    """A possible place of an endpoint."""

    offer: GpuOffer
    gpu_id: int
    own: bool
    """Whether it belongs to the same Reservation."""


def find_place(endpoint: Endpoint, now: datetime) -> EndpointPlace:
    """Return the best other Gpu, of the same Reservation or any. Raises FitsNowhere."""
    job = endpoint.job
    rows = endpoint.models.filter(removed_at=None)
    sizes = list(rows.values_list("memory_bytes", flat=True))
    # All at once if they fit. Otherwise as many as fit take turns, as allowed here.
    wishes = sorted({sum(sizes), max(sizes, default=0)}, reverse=True)
    serving = Endpoint.objects.filter(job__in=Job.objects.live().values("pk"))
    taken = {
        uuid: sentence("serves already, by job #{pk}", pk=pk)
        for uuid, pk in serving.values_list("gpu__uuid", "job_id")
    }
    taken[endpoint.gpu.uuid] = sentence("is the GPU that it uses now")
    reasons: dict[str, None] = {}
    for own in (True, False):
        there = _offers(job, own, now)
        others = {
            u: sentence("is in reservation {pk}", pk=pk) for u, pk in there.own.items()
        }
        without = taken if own else others | taken
        for needs in wishes:
            choice = best_offer(there.offers, needs, without=without)
            if choice.offer is not None:
                return EndpointPlace(choice.offer, there.ids[choice.offer.uuid], own)
        reasons |= dict.fromkeys(choice.reasons)
    raise FitsNowhere(why=tuple(reasons))


def _offers(job: Job, own: bool, now: datetime) -> AvailableGpus:
    if own:
        return offered(
            user=job.reservation.user,
            at=None,
            hours=1,
            now=now,
            reservation_id=job.reservation_id,
        )
    return offered(
        user=job.reservation.user, at=None, hours=1, now=now, until=job.reservation.end
    )


def book_beside(
    job: Job, place: EndpointPlace, *, now: datetime, actor: User | None
) -> Reservation:
    """Book the other Gpu while the old one is held. Raises CodedError."""
    before = job.reservation
    return book(
        user=before.user,
        membership=before.membership,
        gpu_ids=[place.gpu_id],
        start=now,
        end=before.booked_end,
        purpose=before.purpose,
        now=now,
        actor=actor,
    )


def rest_of(
    endpoint: Endpoint,
    place: EndpointPlace,
    *,
    now: datetime,
    actor: User | None,
    why: str,
) -> Reservation:
    """Replace the Gpu for the rest of the Reservation, in the caller's transaction.

    Raises:
        CannotMove: other Jobs run in it.
        CodedError: the rules refuse it, or another booking was faster.
    """
    before = endpoint.job.reservation
    others = before.jobs.live().exclude(pk=endpoint.job_id).count()
    if others:
        raise CannotMove(
            job=endpoint.job_id,
            why=sentence("{others} other jobs run in its reservation", others=others),
        )
    held = before.allocations.filter(live=True).values_list("gpu_id", flat=True)
    kept = [pk for pk in held if pk != endpoint.gpu_id]
    return relocate_rest(
        reservation_id=before.pk,
        gpu_ids=[*kept, place.gpu_id],
        actor=actor,
        now=now,
        reason=f"job #{endpoint.job_id} moves to {place.offer.label}: {why}"[:200],
    )

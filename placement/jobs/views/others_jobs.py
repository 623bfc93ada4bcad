"""Jobs of other users that the site shows: their place, not their content."""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count

from placement.models import Job
from reservations.models import SitePolicy, User

MOST_ROWS = 200


@dataclass(frozen=True)
class OtherJob:
    """One live Job that the User may not open: no name, no log, no page."""

    state: str
    who: str
    """Its owner, if the site shows names. Otherwise the Account."""
    node: str
    gpus: int
    since: datetime


def others_jobs(user: User) -> list[OtherJob]:
    """Return the live Jobs that a User may not open, newest first."""
    names = SitePolicy.current().names_visible
    seen = Job.objects.visible_to(user).values("pk")
    rows = (
        Job.objects.live()
        .exclude(pk__in=seen)
        .select_related("owner", "node", "reservation__membership__account")
        .annotate(held=Count("reservation__allocations", distinct=True))
        .order_by("-created_at", "-pk")[:MOST_ROWS]
    )
    return [
        OtherJob(
            state=row.state,
            who=str(row.owner if names else row.reservation.membership.account),
            node=row.node.name,
            gpus=(len(row.gpu_ids) or row.gpu_count or row.held) * row.uses_gpus,
            since=row.started_at or row.created_at,
        )
        for row in rows
    ]

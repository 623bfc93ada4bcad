"""Book one Gpu from now and start a program on it, in one step from the board."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings

from placement.jobs.service import check_isolation
from placement.models import Job, Workspace
from placement.planner.launch.workspace_apps import TERMINAL, WORKSPACE_APPS
from placement.planner.values.errors import LaunchInvalid
from placement.rules.job_refusals import ScriptsNotAllowed
from placement.workspace.queries import workspace_origin
from placement.workspace.rules import workspace_environment_problem
from placement.workspace.service import open_workspace
from reservations.booking.service import book
from reservations.models import Allocation, Membership, Reservation, User
from reservations.rules.errors import NotFound
from reservations.rules.window import grid_ceil
from reservations.store.booking_facts import site_policy
from telemetry.models import Gpu, Node
from telemetry.protocol.sentences import sentence

USUAL_HOURS = 2


@dataclass(frozen=True, slots=True)
class QuickStart:
    """What the board offers beside "Book"."""

    title: str
    """Of the program."""
    nodes: tuple[str, ...]
    """Names of the nodes that can run it for this User."""


def quick_app(user: User) -> str:
    """Return the name of the program that the User started last, else the site's first.

    One that uses no Gpu is left out. "": the site has none.
    """
    offered = [n for n in settings.WORKSPACE_APPS if WORKSPACE_APPS[n].uses_gpus]
    last = Workspace.objects.filter(job__owner=user, app__in=offered).first()
    return last.app if last else next(iter(offered), "")


def quick_start(user: User) -> QuickStart | None:
    """Return what the board offers a User. None: nothing."""
    app = quick_app(user) if workspace_origin() is not None else ""
    if not app:
        return None
    nodes = [node.name for node in Node.objects.in_service() if _may_run(user, node)]
    return QuickStart(WORKSPACE_APPS[app].title, tuple(nodes)) if nodes else None


def usual_membership(user: User) -> Membership | None:
    """Return the membership that paid for the User's newest booking, if it still can.

    None: the only one pays, or the User must choose.
    """
    rows = Reservation.objects.filter(
        user=user, membership__active=True, membership__account__archived_at=None
    )
    last = rows.select_related("membership__account").order_by("-pk").first()
    return last.membership if last else None


def last_job(user: User, app: str) -> Job | None:
    """Return the Job with which the User ran a program last."""
    rows = Workspace.objects.exclude(app=TERMINAL).filter(job__owner=user, app=app)
    last = rows.select_related("job").first()
    return last.job if last else None


def book_and_open(
    *,
    user: User,
    gpu_id: int,
    hours: int,
    membership: Membership | None = None,
    environment_folder: str,
    now: datetime,
) -> Workspace:
    """Book one Gpu from now and start the User's usual program on it.

    It shows the folder of the last time. The booking ends before the next one on this
    Gpu begins.

    Args:
        user: who books.
        gpu_id: of the Gpu.
        hours: how long, at least 1. The end is rounded up to the calendar's
            grid.
        membership: the membership that pays; None: see ``usual_membership``.
        environment_folder: where the program is (``protocol.launchers``).
        now: the present.

    Raises:
        NotFound: no such Gpu, or the site offers no program.
        ScriptsNotAllowed: programs of this User may not run on its node. Nothing is
            booked.
        LaunchInvalid: the environment cannot be named so. Nothing is booked.
        Refusal: the rules of booking refuse it.
        JobRefusal: it is booked, but the program is not started.
    """
    app = quick_app(user) if workspace_origin() is not None else ""
    gpu = Gpu.objects.shown().select_related("node").filter(pk=gpu_id).first()
    if gpu is None or not app:
        raise NotFound(what=sentence("GPU"))
    check_isolation(gpu.node, user)
    allowed = settings.WORKSPACE_IMAGES
    if why := workspace_environment_problem(environment_folder, allowed):
        raise LaunchInvalid({"environment_folder": why})
    end = grid_ceil(now + timedelta(hours=hours), site_policy().grid_seconds)
    ahead = Allocation.objects.filter(gpu=gpu, live=True, start__gt=now)
    following = ahead.order_by("start").values_list("start", flat=True).first()
    made = book(
        user=user,
        membership=membership or usual_membership(user),
        gpu_ids=[gpu.pk],
        start=now,
        end=min(end, following or end),
        now=now,
    )
    before = last_job(user, app)
    return open_workspace(
        user=user,
        reservation_id=made.pk,
        app=app,
        environment_folder=environment_folder,
        folder=str(before.recipe_settings.get("folder", "")) if before else "",
        now=now,
    )


def _may_run(user: User, node: Node) -> bool:
    try:
        check_isolation(node, user)
    except ScriptsNotAllowed:
        return False
    return True

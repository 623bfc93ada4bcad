"""The workspaces of a reservation, for its page."""

from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict

from django.conf import settings
from django.db.models import Q, QuerySet

from placement.jobs.queries import waiting_reason
from placement.jobs.service import check_isolation
from placement.models import Job, Workspace
from placement.planner.launch.workspace_apps import TERMINAL, WORKSPACE_APPS
from placement.rules.job_refusals import ScriptsNotAllowed
from placement.workspace.rules import WorkspaceOrigin, read_origin
from reservations.models import Reservation, User
from reservations.rules.lifecycle import State
from reservations.store.calendar_queries import iso
from reservations.store.co_users import usable_by
from telemetry.models import Node
from telemetry.protocol.sentences import sentence
from telemetry.web.answer_types import UtcInstant
from telemetry.web.error_answers import message_of

MOST_LINES = 12
HOST_WORDS = "gpuportal: "
"""Before a line that the first process of a workspace writes
(placement/agent/access/workspace_host.py)."""
CHANGING = frozenset((Job.State.QUEUED, Job.State.STARTING, Job.State.STOPPING))
ENDED_BADLY = frozenset((Job.State.FAILED, Job.State.LOST))


@dataclass(frozen=True, slots=True)
class WorkspaceRow:
    """A workspace for the page."""

    pk: int
    job: Job
    title: str
    own: bool
    shared: bool
    running: bool
    live: bool
    waits: str
    """Why it does not run yet; "": it runs, or it has ended."""
    failed: bool
    failure: str
    """Why it did not start, in the words of its first process; "": the Job's reason."""
    last_lines: str
    """The end of its log, if it ended badly and the log says more."""


@dataclass(frozen=True, slots=True)
class WorkspacesPanel:
    """The workspaces of a Reservation that a User may use, and a form for a new one."""

    reservation: int
    rows: tuple[WorkspaceRow, ...] = ()
    apps: tuple[tuple[str, str], ...] = ()
    """Name and title of those that the User can open. (): none now."""
    nodes: tuple[tuple[str, int], ...] = ()
    """Name, and number of Gpus held there."""
    changing: bool = False
    """True: a state will change soon."""
    dns_name: str = ""
    """The name that a DNS line lacks; "": workspaces are set up."""
    environment: str = ""
    """The environment that the User named last."""
    folder: str = ""
    """The folder that the User named last."""
    images: tuple[str, ...] = ()
    """Images that the site allows."""
    refusal: str = ""
    """Why none can start on the Reservation's nodes, for the reader; "": one can."""

    @property
    def live(self) -> bool:
        """Return whether one of them waits or runs."""
        return any(row.live for row in self.rows)

    @property
    def most_gpus(self) -> int:
        """Return the largest number of Gpus on one node."""
        return max((count for _, count in self.nodes), default=0)


class WorkspaceAnswer(TypedDict):
    """A workspace, or a terminal."""

    id: int
    app: str
    """Name of its program, or terminal."""
    title: str
    """Of its program."""
    job: int
    """The job that runs it."""
    reservation: int
    node: str
    owner: str
    """Login."""
    own: bool
    """Whether it is the caller's."""
    shared: bool
    """Whether co-users of the reservation may use it."""
    state: str
    """As of a job: queued, starting, running, stopping, done, failed, stopped, lost."""
    reason: str
    """Why it is in this state. May be empty."""
    waits: str
    """What it waits for. Empty: nothing."""
    environment_folder: str
    folder: str
    """What it shows. Empty: the home."""
    started_at: UtcInstant | None
    ends_at: UtcInstant
    """The end of its reservation."""
    last_lines: list[str]
    """The end of its log, if it ended badly."""


def usable_workspaces(user: User) -> QuerySet[Workspace]:
    """Return the workspaces that a User may use, newest first: own, or shared.

    Terminals are among them. Nobody else can use a terminal.
    """
    held = Reservation.objects.filter(usable_by(user)).values("pk")
    shared = Q(shared=True, job__reservation__in=held) & ~Q(app=TERMINAL)
    return (
        Workspace.objects.filter(Q(job__owner=user) | shared)
        .select_related("job__owner", "job__node", "job__reservation")
        .order_by("-created_at", "-pk")
    )


def workspace_facts(one: Workspace, user: User) -> WorkspaceAnswer:
    """Return a workspace for the API."""
    job = one.job
    bad = job.state in ENDED_BADLY
    return {
        "id": one.pk,
        "app": one.app,
        "title": title_of(one.app),
        "job": job.pk,
        "reservation": job.reservation_id,
        "node": job.node.name,
        "owner": job.owner.username,
        "own": job.owner_id == user.pk,
        "shared": one.shared,
        "state": job.state,
        "reason": job.reason,
        "waits": waiting_reason(job),
        "environment_folder": job.environment_folder,
        "folder": str(job.recipe_settings.get("folder", "")),
        "started_at": iso(job.started_at) if job.started_at else None,
        "ends_at": iso(job.reservation.end),
        "last_lines": job.last_lines[-MOST_LINES:] if bad else [],
    }


def title_of(app: str) -> str:
    """Return the title of a program, which also names its Job."""
    if app == TERMINAL:
        return sentence("Terminal")
    return str(WORKSPACE_APPS[app].title)


def workspace_origin() -> WorkspaceOrigin | None:
    """Return where workspaces are; None: the site has set no address for them."""
    return read_origin(settings.WORKSPACE_ORIGIN)


def may_use(workspace: Workspace, user: User) -> bool:
    """Return whether a User of the Reservation may use a workspace: own, or shared."""
    return workspace.job.owner_id == user.pk or workspace.shared


def workspaces_panel(
    reservation: Reservation, user: User, host: str, now: datetime
) -> WorkspacesPanel | None:
    """Return the panel; None: the Reservation is over.

    Args:
        reservation: whose page it is.
        user: its owner or a co-user.
        host: of the portal, as the browser named it.
        now: the present.
    """
    if reservation.state not in State.live() or reservation.end <= now:
        return None
    origin = workspace_origin()
    if origin is None:
        dns_name = f"*.ws.{host.rpartition(':')[0] or host}"
        return WorkspacesPanel(reservation.pk, dns_name=dns_name)
    found = (
        Workspace.objects.filter(job__reservation=reservation)
        .exclude(app=TERMINAL)
        .select_related("job__owner", "job__reservation", "job__node")
        .order_by("-pk")
    )
    rows: list[WorkspaceRow] = []
    for one in found:
        # Of those that have ended only the newest says something.
        if may_use(one, user) and (one.job.state in Job.State.live() or not rows):
            rows.append(_row(one, user))
    live = {row.job.workspace.app for row in rows if row.own and row.live}
    apps = tuple(
        (name, WORKSPACE_APPS[name].title)
        for name in settings.WORKSPACE_APPS
        if name not in live
    )
    refusal = isolation_refusal(reservation, user) if apps else ""
    others = Workspace.objects.exclude(app=TERMINAL)
    last = others.filter(job__owner=user).select_related("job").first()
    return WorkspacesPanel(
        reservation=reservation.pk,
        rows=tuple(rows),
        apps=() if refusal else apps,
        nodes=held_nodes(reservation),
        changing=any(row.job.state in CHANGING for row in rows),
        environment=last.job.environment_folder if last else "",
        folder=str(last.job.recipe_settings.get("folder", "")) if last else "",
        images=tuple(settings.WORKSPACE_IMAGES),
        refusal=refusal,
    )


def isolation_refusal(reservation: Reservation, user: User) -> str:
    """Return why every node of a Reservation refuses the User's own programs."""
    words = ""
    held = reservation.allocations.filter(live=True)
    for node in Node.objects.filter(pk__in=held.values("gpu__node")).order_by("name"):
        try:
            check_isolation(node, user)
        except ScriptsNotAllowed as refused:
            words = words or message_of(refused)
        else:
            return ""
    return words


def _row(one: Workspace, user: User) -> WorkspaceRow:
    job = one.job
    bad = job.state in ENDED_BADLY
    lines = job.last_lines[-MOST_LINES:] if bad else []
    own_words = len(lines) == 1 and lines[0].startswith(HOST_WORDS)
    return WorkspaceRow(
        pk=one.pk,
        job=job,
        title=WORKSPACE_APPS[one.app].title,
        own=job.owner_id == user.pk,
        shared=one.shared,
        running=job.state == Job.State.RUNNING,
        live=job.state in Job.State.live(),
        waits=waiting_reason(job),
        failed=bad and bool(job.reason or lines),
        failure=lines[0].removeprefix(HOST_WORDS) if own_words else "",
        last_lines="" if own_words else "\n".join(lines),
    )


def held_nodes(reservation: Reservation) -> tuple[tuple[str, int], ...]:
    """Return name and number of held Gpus of each node of a Reservation."""
    counts: dict[str, int] = {}
    names = reservation.allocations.filter(live=True).order_by("gpu__node__name")
    for name in names.values_list("gpu__node__name", flat=True):
        counts[name] = counts.get(name, 0) + 1
    return tuple(counts.items())

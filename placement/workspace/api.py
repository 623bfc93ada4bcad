"""Workspaces and terminals over the JSON API: /api/v1/workspaces."""

from typing import Any, TypedDict

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from ninja import Query, Router, Schema, Status
from pydantic import ConfigDict, Field

from placement.models import Job, Workspace
from placement.planner.launch.workspace_apps import TERMINAL
from placement.protocol.launchers import MOST_FOLDER_CHARACTERS
from placement.workspace import service as workspaces
from placement.workspace.forms import MOST_HOURS
from placement.workspace.queries import (
    WorkspaceAnswer,
    usable_workspaces,
    workspace_facts,
)
from placement.workspace.quick_booking import USUAL_HOURS, book_and_open
from reservations.models import User
from reservations.rules.errors import NotFound
from reservations.store.calendar_queries import iso
from reservations.web.api_parts import own_membership, signed_in, token_of
from reservations.web.request_keys import repeatable
from reservations.web.schemas import Key, Line
from telemetry.protocol.sentences import sentence
from telemetry.web.answer_types import UtcInstant
from telemetry.web.cursor_page import CURSOR, NextPage, cursor_page, link_next

MOST_LISTED = 200
router = Router(tags=["placement"])


class NewWorkspace(Schema):
    """A program to start in the caller's reservation."""

    model_config = ConfigDict(extra="forbid")
    reservation: Key
    app: Line = Field(max_length=40)
    """Name of one of the site's programs, such as jupyter-lab, or terminal."""
    environment_folder: Line = Field("", max_length=MOST_FOLDER_CHARACTERS)
    """Its environment on the node, as for a script."""
    folder: Line = Field("", max_length=MOST_FOLDER_CHARACTERS)
    """What it shows: an absolute path, or one in the home. Empty: the home."""
    gpus: int | None = Field(None, ge=1, le=1024)
    """How many GPUs it uses. Null: all of the reservation on its node."""
    node: Line = Field("", max_length=64)
    """One of the reservation's nodes. Empty: the first."""


class BookedWorkspace(Schema):
    """A GPU to book from now, on which the caller's usual program is started."""

    model_config = ConfigDict(extra="forbid")
    gpu: Key
    hours: int = Field(USUAL_HOURS, ge=1, le=MOST_HOURS)
    environment_folder: Line = Field("", max_length=MOST_FOLDER_CHARACTERS)
    membership: Key | None = None
    """The membership that pays. Null: that of the newest booking."""


class Sharing(Schema):
    """Whether co-users of the reservation may use a workspace."""

    model_config = ConfigDict(extra="forbid")
    shared: bool


class WorkspaceList(NextPage):
    """Workspaces and terminals that the caller may use."""

    workspaces: list[WorkspaceAnswer]


class EntryAnswer(TypedDict):
    """Where a browser opens a workspace."""

    address: str
    """Works once, within a minute. That of a terminal is a page of the portal, which
    asks for a login."""
    until: UtcInstant | None
    """Null: it works as long as the terminal runs."""


@router.get("/workspaces")
def workspace_list(
    request: HttpRequest,
    response: HttpResponse,
    reservation: int | None = Query(None, ge=1, le=2**62),
    ended: bool = False,
    limit: int = Query(MOST_LISTED, ge=1, le=MOST_LISTED),
    cursor: str = CURSOR,
) -> WorkspaceList:
    """Workspaces and terminals that the caller may use, newest first.

    With `ended` also those that have ended.
    """
    user = signed_in(request)
    rows = usable_workspaces(user)
    if reservation is not None:
        rows = rows.filter(job__reservation_id=reservation)
    if not ended:
        rows = rows.filter(job__in=Job.objects.live().values("pk"))
    page, following = cursor_page(rows, by="created_at", cursor=cursor, limit=limit)
    link_next(request, response, following)
    return {
        "workspaces": [workspace_facts(row, user) for row in page],
        "next": following,
    }


@router.post("/workspaces", response={201: dict[str, Any]})
@repeatable
def workspace_start(
    request: HttpRequest, body: NewWorkspace
) -> Status[WorkspaceAnswer]:
    """Start a program or a terminal in a reservation. One that runs is returned."""
    user = signed_in(request)
    made = workspaces.open_workspace(
        user=user,
        reservation_id=body.reservation,
        app=body.app,
        environment_folder=body.environment_folder,
        folder=body.folder,
        gpu_count=body.gpus,
        node=body.node,
        now=timezone.now(),
    )
    return Status(201, workspace_facts(_usable(user, made.pk), user))


@router.post("/workspaces/book", response={201: dict[str, Any]})
@repeatable
def workspace_book(
    request: HttpRequest, body: BookedWorkspace
) -> Status[WorkspaceAnswer]:
    """Book one GPU from now, and start the program that the caller started last.

    The booking ends before the next one on this GPU begins.
    """
    user = signed_in(request)
    made = book_and_open(
        user=user,
        gpu_id=body.gpu,
        hours=body.hours,
        membership=own_membership(user, body.membership),
        environment_folder=body.environment_folder,
        now=timezone.now(),
    )
    return Status(201, workspace_facts(_usable(user, made.pk), user))


@router.get("/workspaces/{int:workspace_id}")
def workspace_one(request: HttpRequest, workspace_id: int) -> WorkspaceAnswer:
    """One workspace or terminal."""
    user = signed_in(request)
    return workspace_facts(_usable(user, workspace_id), user)


@router.post("/workspaces/{int:workspace_id}/entry", response={201: dict[str, Any]})
def workspace_entry(request: HttpRequest, workspace_id: int) -> Status[EntryAnswer]:
    """Make the address at which a browser opens a workspace that runs.

    What it opens ends with the reservation, and with the session or the token that
    made it.
    """
    user, token = signed_in(request), token_of(request)
    found = _usable(user, workspace_id)
    if found.app == TERMINAL:
        page = reverse("terminal", args=[found.job.reservation_id])
        return Status(201, {"address": request.build_absolute_uri(page), "until": None})
    entry = workspaces.start_entry(
        user=user,
        session_key=request.session.session_key or "",
        token=token,
        workspace_pk=found.pk,
        now=timezone.now(),
    )
    return Status(201, {"address": entry.address, "until": iso(entry.until)})


@router.post("/workspaces/{int:workspace_id}/share")
def workspace_share(
    request: HttpRequest, workspace_id: int, body: Sharing
) -> WorkspaceAnswer:
    """Set whether co-users may use the caller's workspace, with the caller's rights."""
    user = signed_in(request)
    workspaces.set_shared(
        user=user, workspace_pk=workspace_id, shared=body.shared, now=timezone.now()
    )
    return workspace_facts(_usable(user, workspace_id), user)


@router.post("/workspaces/{int:workspace_id}/stop")
def workspace_stop(request: HttpRequest, workspace_id: int) -> WorkspaceAnswer:
    """Stop the caller's workspace or terminal: TERM, time to end, and then KILL."""
    user = signed_in(request)
    found = _usable(user, workspace_id)
    workspaces.stop_own(user=user, workspace=found, now=timezone.now())
    return workspace_facts(_usable(user, workspace_id), user)


def _usable(user: User, pk: int) -> Workspace:
    found: Workspace | None = usable_workspaces(user).filter(pk=pk).first()
    if found is None:
        raise NotFound(what=sentence("workspace"))
    return found

"""Open a workspace, enter it, share it. What runs on the node is its Job."""

import base64
import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from django.conf import settings
from django.db import transaction

from placement.access.access_target import AccessTarget, access_target
from placement.jobs.service import (
    check_counts,
    check_isolation,
    locked_usable_reservation,
    node_of,
    queue_job,
    stop,
)
from placement.models import Job, Workspace, WorkspaceEntry
from placement.planner.launch.recipes import WORKSPACE, checked_settings
from placement.planner.launch.workspace_apps import TERMINAL, WORKSPACE_APPS
from placement.planner.values.errors import LaunchInvalid
from placement.protocol.stream_refusal import StreamRefused
from placement.workspace.queries import may_use, title_of, workspace_origin
from placement.workspace.rules import workspace_environment_problem
from reservations.accounts.second_factors.sign_in import door_user
from reservations.models import ApiToken, User
from reservations.rules.errors import NotAllowed, NotFound
from reservations.store.audit_log import audit_act
from telemetry.protocol.sentences import sentence

CODE_SECONDS = 60
CODE_BYTES = 32
"""Random bytes of a code and of a cookie."""
BY_TOKEN = "token:"
"""Before the number of the token that made an entry, in place of a session's key."""
ENTER_PATH = "/.gpuportal/enter"
"""Where the host of a workspace takes a code."""
LABEL_BYTES = 15
"""Random bytes of a host name. In base 32 they are 24 letters and digits."""


@dataclass(frozen=True, slots=True)
class StartedEntry:
    """An entry that a browser has not used yet."""

    address: str
    """With the code. It works once."""
    until: datetime


@dataclass(frozen=True, slots=True)
class VisitTarget:
    """A workspace that a User may use now."""

    access: AccessTarget
    folder: str
    """Name of its Job's folder on the node."""
    start_path: str


def open_workspace(
    *,
    user: User,
    reservation_id: int,
    app: str,
    environment_folder: str = "",
    folder: str = "",
    gpu_count: int | None = None,
    node: str = "",
    now: datetime,
) -> Workspace:
    """Queue the Job of a workspace. A running one of this User is returned instead.

    Args:
        user: owner or co-user of the Reservation.
        reservation_id: the Job starts with it.
        app: name of one of the site's programs, or of the terminal.
        environment_folder: where its program is (``protocol.launchers``).
        folder: what the program shows: an absolute path, or one in the User's home.
        gpu_count: how many Gpus it uses; None: all of the Reservation on its node. A
            program that uses none gets none.
        node: where, if the Reservation has Gpus on several nodes.
        now: the present.

    Raises:
        LaunchInvalid: by field.
        NotFound: no such Reservation of this User.
        JobRefusal: the rules refuse it.
    """
    problems: dict[str, str] = {}
    if app not in (*settings.WORKSPACE_APPS, TERMINAL):
        there = ", ".join(settings.WORKSPACE_APPS)
        problems["app"] = sentence("must be one of {there}", there=there)
    elif app != TERMINAL and workspace_origin() is None:
        problems["app"] = sentence(
            "cannot be opened, because the site has no address for workspaces"
        )
    allowed = settings.WORKSPACE_IMAGES
    if why := workspace_environment_problem(environment_folder, allowed):
        problems["environment_folder"] = why
    known = WORKSPACE_APPS.get(app)
    if known is not None and known.needs_folder and not folder.strip():
        problems["folder"] = sentence(
            "{title} needs the folder of its logs, for example runs", title=known.title
        )
    if problems:
        raise LaunchInvalid(problems)
    with transaction.atomic(durable=True):
        reservation = locked_usable_reservation(
            user, reservation_id, now, for_gap=False
        )
        running = Workspace.objects.filter(
            app=app,
            job__owner=user,
            job__reservation=reservation,
            job__in=Job.objects.live().values("pk"),
        ).first()
        if running is not None:
            return running
        where = node_of(reservation, node)
        if known is not None and not known.uses_gpus:
            gpu_count = 0
        else:
            check_counts(reservation, where, gpu_count, 0, False)
        check_isolation(where, user)
        job = queue_job(
            user,
            reservation=reservation,
            name=title_of(app),
            kind=Job.Kind.WORKSPACE,
            recipe=WORKSPACE.name,
            recipe_settings=_settings_of(app, folder),
            environment_folder=environment_folder,
            gpu_count=gpu_count,
            node=where,
            created_at=now,
        )
        label = base64.b32encode(secrets.token_bytes(LABEL_BYTES)).decode().lower()
        return Workspace.objects.create(job=job, app=app, label=label, created_at=now)


def terminal_target(user: User, reservation_pk: int, now: datetime) -> VisitTarget:
    """Return the User's terminal in a Reservation.

    Raises:
        NotFound: the User has no such Reservation, or no terminal there.
        StreamRefused: it does not run, or the Reservation is not active.
    """
    newest = (
        Workspace.objects.select_related("job__node")
        .filter(
            app=TERMINAL,
            job__owner=user,
            # Not job__reservation, which passes a number beyond the column's range on.
            job__reservation__pk=reservation_pk,
        )
        .order_by("-pk")
        .first()
    )
    if newest is None:
        raise NotFound(what=sentence("terminal"))
    return _target(newest, user, now)


def _settings_of(app: str, folder: str) -> dict[str, Any]:
    """Return the settings of a workspace's Job, with its load on a simulated Gpu.

    A shell computes nothing. A node that knows no folders takes a Job without one.

    Raises:
        LaunchInvalid: the folder is no path.
    """
    util_pct = 0.0 if app == TERMINAL else 20.0
    load = {"simulated_memory_gib": 0.5, "simulated_util_pct": util_pct}
    try:
        given = checked_settings(WORKSPACE.name, {"app": app, "folder": folder, **load})
    except LaunchInvalid as error:
        why = error.fields["recipe_settings.folder"]
        raise LaunchInvalid({"folder": why}) from error
    return {name: value for name, value in given.items() if value != ""}


def start_entry(
    *,
    user: User,
    session_key: str,
    token: ApiToken | None = None,
    workspace_pk: int,
    now: datetime,
) -> StartedEntry:
    """Return the address at which the User's browser enters a workspace once.

    Args:
        user: owner or co-user of the Reservation.
        session_key: of the portal session that asks. The entry ends with it.
        token: that asks instead of a session. The entry ends with it.
        workspace_pk: of the workspace.
        now: the present.

    Raises:
        NotFound: there is no such workspace, the User may not use it, or the site has
            no address for workspaces.
        StreamRefused: it does not run, or the Reservation is not active.
    """
    origin = workspace_origin()
    if origin is None:
        raise _no_workspace()
    workspace = _usable(user, workspace_pk)
    _target(workspace, user, now)
    ended = WorkspaceEntry.objects.exclude(
        workspace__job__in=Job.objects.live().values("pk")
    )
    ended.delete()
    unused = WorkspaceEntry.objects.filter(cookie_hash=None, code_until__lt=now)
    unused.delete()
    code = secrets.token_urlsafe(CODE_BYTES)
    until = now + timedelta(seconds=CODE_SECONDS)
    WorkspaceEntry.objects.create(
        workspace=workspace,
        user=user,
        session_key=session_key if token is None else f"{BY_TOKEN}{token.pk}",
        code_hash=_hash(code),
        code_until=until,
        created_at=now,
    )
    place = f"{origin.origin_of(workspace.label)}{ENTER_PATH}"
    return StartedEntry(f"{place}?code={quote(code)}", until)


def use_code(code: str, label: str, *, now: datetime) -> str | None:
    """Return the cookie for a code, which is then used up. None: it is not valid."""
    cookie = secrets.token_urlsafe(CODE_BYTES)
    used = WorkspaceEntry.objects.filter(
        code_hash=_hash(code),
        code_until__gt=now,
        cookie_hash=None,
        workspace__label=label,
    ).update(cookie_hash=_hash(cookie))
    return cookie if used == 1 else None


def visit_target(cookie: str, label: str, *, now: datetime) -> VisitTarget:
    """Return the workspace that a cookie opens now.

    Raises:
        NotFound: the cookie opens nothing here: unknown, of another workspace, of a
            session that has ended, or of a User who may no longer use it.
        RequestRefused: an operator has to set up a second factor first.
        StreamRefused: it does not run, or the Reservation is over.
    """
    entry = (
        WorkspaceEntry.objects.filter(cookie_hash=_hash(cookie), workspace__label=label)
        .select_related("workspace")
        .first()
    )
    user = _user_of_entry(entry.session_key, now) if entry else None
    if entry is None or user is None or user.pk != entry.user_id:
        raise _no_workspace()
    return _target(_usable(user, entry.workspace_id), user, now)


def _user_of_entry(key: str, now: datetime) -> User | None:
    """Return the User of the session or the token that made an entry.

    None: it has ended. A session's key has letters and digits only.
    """
    if not key.startswith(BY_TOKEN):
        return door_user(key, now)
    tokens = ApiToken.objects.select_related("user").filter(
        pk=int(key.removeprefix(BY_TOKEN)), revoked_at=None, expires_at__gt=now
    )
    token = tokens.filter(user__is_active=True).first()
    return token.user if token else None


def stop_own(*, user: User, workspace: Workspace, now: datetime) -> None:
    """Stop the Job of the User's own workspace or terminal.

    Raises:
        NotAllowed: it is another User's.
        JobOver: it has ended.
    """
    if workspace.job.owner_id != user.pk:
        raise NotAllowed(act=sentence("stop another person's workspace"))
    stop(job_id=workspace.job_id, user=user, now=now)


def set_shared(*, user: User, workspace_pk: int, shared: bool, now: datetime) -> None:
    """Set whether co-users of the Reservation may use a workspace of the User.

    Raises:
        NotFound: there is no such workspace.
        NotAllowed: it is another User's.
    """
    with transaction.atomic(durable=True):
        workspace = _usable(user, workspace_pk)
        if workspace.job.owner_id != user.pk:
            raise NotAllowed(act=sentence("share another person's workspace"))
        Workspace.objects.filter(pk=workspace.pk).update(shared=shared)
        audit_act(
            verb="workspace.shared",
            subject=f"job:{workspace.job_id}",
            actor=user,
            now=now,
            shared=shared,
        )


def _usable(user: User, pk: int) -> Workspace:
    workspace = (
        Workspace.objects.select_related("job__node", "job__owner")
        .filter(pk=pk)
        .exclude(app=TERMINAL)
        .first()
    )
    if workspace is None or not may_use(workspace, user):
        raise _no_workspace()
    return workspace


def _target(workspace: Workspace, user: User, now: datetime) -> VisitTarget:
    job = workspace.job
    access = access_target(user, job.reservation_id, now, node_name=job.node.name)
    here = workspace.app == TERMINAL
    if job.state not in Job.State.live() or job.state == Job.State.STOPPING:
        ended = sentence("The workspace has ended.")
        raise StreamRefused(
            "access-over", sentence("The terminal has ended.") if here else ended
        )
    if job.state != Job.State.RUNNING:
        early = sentence("The workspace does not run yet.")
        raise StreamRefused(
            "not-ready", sentence("The terminal does not run yet.") if here else early
        )
    return VisitTarget(
        access=access,
        folder=f"{job.pk}-{job.attempt}-{job.key}",
        start_path="" if workspace.app == TERMINAL else _start_path(workspace),
    )


def _start_path(workspace: Workspace) -> str:
    return WORKSPACE_APPS[workspace.app].start_path


def _no_workspace() -> NotFound:
    return NotFound(what=sentence("workspace"))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

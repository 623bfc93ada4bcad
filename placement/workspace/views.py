"""The page of a reservation's workspaces, and what its buttons do."""

from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from placement.jobs import service as jobs
from placement.jobs.views.viewer import reader
from placement.models import Workspace
from placement.planner.launch.workspace_apps import WORKSPACE_APPS
from placement.workspace import service as workspaces
from placement.workspace.forms import QuickForm, WorkspaceForm
from placement.workspace.queries import workspace_origin, workspaces_panel
from placement.workspace.quick_booking import (
    USUAL_HOURS,
    last_job,
    quick_app,
    usual_membership,
)
from placement.workspace.quick_booking import book_and_open as start_quickly
from reservations.models import Reservation
from reservations.store.co_users import usable_by
from reservations.web.refusal_form import add_refusal
from telemetry.models import Gpu
from telemetry.protocol.coded_error import CodedError
from telemetry.web.error_answers import add_errors
from telemetry.web.query_filters import whole_number


def allow_entry(response: HttpResponse) -> HttpResponse:
    """Let forms of a page lead to workspaces, after the redirect of `enter`."""
    origin = workspace_origin()
    if origin is not None:
        update = {"form-action": [origin.pattern]}
        response._csp_update = update  # type: ignore[attr-defined]
    return response


@require_http_methods(["GET", "HEAD", "POST"])
def reservation_workspaces(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the workspaces of a Reservation; POST opens one."""
    user, now = reader(request), timezone.now()
    found = get_object_or_404(
        Reservation.objects.filter(usable_by(user)).distinct(), pk=pk
    )
    form, status = WorkspaceForm(request.POST or None), 200
    if request.method == "POST" and workspace_origin() is None:
        raise Http404
    if request.method == "POST":
        status = 422
        if form.is_valid():
            try:
                workspaces.open_workspace(
                    user=user, reservation_id=pk, now=now, **form.cleaned_data
                )
                return _back(pk)
            except CodedError as error:
                status = add_errors(form, error)
    panel = workspaces_panel(found, user, request.get_host(), now)
    if panel is None:
        return redirect("reservation", pk=pk)
    response = render(
        request,
        "placement/workspace/workspaces_page.html",
        {"workspaces": panel, "workspace_form": form, "reservation": found},
        status=status,
    )
    return allow_entry(response)


@require_http_methods(["GET", "HEAD", "POST"])
def book_and_open(request: HttpRequest) -> HttpResponse:
    """Book one Gpu from now and start the user's usual program on it.

    The button on the board sends only the Gpu. A user who never ran the program is
    asked for its environment first.
    """
    user = reader(request)
    app = quick_app(user)
    if workspace_origin() is None or not app:
        raise Http404
    before = last_job(user, app)
    usual = {
        "hours": USUAL_HOURS,
        "membership": usual_membership(user),
        "environment_folder": before.environment_folder if before else "",
    }
    asked = request.POST if request.method == "POST" else request.GET
    given: Any = request.POST if request.method == "POST" else None
    if given is not None and "hours" not in given:
        own = {name: value for name, value in usual.items() if name != "membership"}
        given = None if before is None else own | {"gpu": given.get("gpu", "")}
    form = QuickForm(user, given, initial=usual)
    gpu = get_object_or_404(Gpu.objects.shown(), pk=whole_number(asked.get("gpu", "")))
    status = 200
    if given is not None:
        status = 422
        if form.is_valid():
            try:
                made = start_quickly(
                    user=user,
                    gpu_id=form.cleaned_data.pop("gpu"),
                    now=timezone.now(),
                    **form.cleaned_data,
                )
                return _back(made.job.reservation_id)
            except CodedError as error:
                status = add_refusal(form, error)
    page = {"form": form, "gpu": gpu, "title": WORKSPACE_APPS[app].title}
    page["images"] = settings.WORKSPACE_IMAGES
    return render(request, "placement/workspace/book_page.html", page, status=status)


@require_POST
def enter(request: HttpRequest, pk: int) -> HttpResponse:
    """Lead the browser into a workspace, with a code that is used once."""
    entry = workspaces.start_entry(
        user=reader(request),
        session_key=request.session.session_key or "",
        workspace_pk=pk,
        now=timezone.now(),
    )
    response = HttpResponseRedirect(entry.address, status=303)
    response["Cache-Control"] = "no-store"
    response["Referrer-Policy"] = "no-referrer"
    return response


@require_POST
def stop(request: HttpRequest, pk: int) -> HttpResponse:
    """Stop the Job of a workspace."""
    found = get_object_or_404(Workspace.objects.select_related("job"), pk=pk)
    jobs.stop(job_id=found.job_id, user=reader(request), now=timezone.now())
    return _back(found.job.reservation_id)


@require_POST
def share(request: HttpRequest, pk: int) -> HttpResponse:
    """Let the Reservation's co-users use a workspace, or not any more."""
    found = get_object_or_404(Workspace.objects.select_related("job"), pk=pk)
    workspaces.set_shared(
        user=reader(request),
        workspace_pk=pk,
        shared=request.POST.get("shared") == "yes",
        now=timezone.now(),
    )
    return _back(found.job.reservation_id)


def _back(pk: int) -> HttpResponse:
    return HttpResponseRedirect(f"/reservations/{pk}/#workspaces")

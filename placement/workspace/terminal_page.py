"""The page of a reservation's terminal, and its buttons."""

from typing import Any

from csp.constants import NONCE, SELF
from csp.decorators import csp_replace
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from placement.jobs import service as jobs
from placement.jobs.queries import waiting_reason
from placement.jobs.views.viewer import reader
from placement.models import Job, Workspace
from placement.planner.launch.workspace_apps import TERMINAL
from placement.workspace import service as workspaces
from placement.workspace.forms import TerminalForm
from placement.workspace.queries import CHANGING, held_nodes, isolation_refusal
from reservations.models import Reservation, User
from reservations.rules.lifecycle import State
from reservations.store.co_users import usable_by
from telemetry.protocol.coded_error import CodedError
from telemetry.web.error_answers import add_errors


# xterm.js writes its colours into style elements, which get the page's nonce.
@csp_replace({"style-src": [SELF, NONCE]})  # type: ignore[arg-type]
@require_http_methods(["GET", "HEAD", "POST"])
def reservation_terminal(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the User's terminal in a Reservation; POST starts one."""
    user, now = reader(request), timezone.now()
    found = get_object_or_404(
        Reservation.objects.filter(usable_by(user)).distinct(), pk=pk
    )
    form, status = TerminalForm(request.POST if request.method == "POST" else None), 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            try:
                workspaces.open_workspace(
                    user=user,
                    reservation_id=pk,
                    app=TERMINAL,
                    now=now,
                    **form.cleaned_data,
                )
                return redirect("terminal", pk=pk)
            except CodedError as error:
                status = add_errors(form, error)
    if found.state not in State.live() or found.end <= now:
        return redirect("reservation", pk=pk)
    nonce = request.csp_nonce  # type: ignore[attr-defined]
    context = {"reservation": found, "form": form, "nonce": nonce}
    context |= _context(found, user)
    return render(
        request, "placement/workspace/terminal_show.html", context, status=status
    )


@require_POST
def stop_terminal(request: HttpRequest, pk: int) -> HttpResponse:
    """Stop the Job of the User's terminal, with all its programs."""
    user = reader(request)
    found = get_object_or_404(_terminals(pk, user), job__in=Job.objects.live())
    jobs.stop(job_id=found.job_id, user=user, now=timezone.now())
    return redirect("terminal", pk=pk)


def _terminals(reservation_pk: int, user: User) -> Any:
    return Workspace.objects.filter(
        app=TERMINAL, job__owner=user, job__reservation=reservation_pk
    ).select_related("job__node", "job__reservation")


def _context(found: Reservation, user: User) -> dict[str, Any]:
    newest = _terminals(found.pk, user).first()
    job = newest.job if newest else None
    live = job is not None and job.state in Job.State.live()
    return {
        "job": job,
        "live": live,
        "running": job is not None and job.state == Job.State.RUNNING,
        "changing": job is not None and job.state in CHANGING,
        "waits": waiting_reason(job) if job and live else "",
        "refusal": "" if live else isolation_refusal(found, user),
        "nodes": held_nodes(found),
    }

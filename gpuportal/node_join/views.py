"""The operator's pages: make a join token, watch the machine, withdraw the token."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)

from gpuportal.node_join import service
from gpuportal.node_join.join_channel import portal_origin
from gpuportal.node_join.queries import is_complete, join_rows
from gpuportal.node_join.rules import reachable_broker
from reservations.store.access import operator_required, reader
from telemetry.inventory.node_identity import doubtful_nodes
from telemetry.models import NodeJoin
from telemetry.protocol.coded_error import FieldsRefused
from telemetry.web.error_answers import add_errors
from telemetry.web.plain_forms import PlainForm

JOINS_SHOWN = 20


class MachineForm(PlainForm):
    """A machine that shall join."""

    name = forms.CharField(
        max_length=63,
        label=lazy("Name of the machine"),
        help_text=lazy("Letters, digits, - and _. It cannot be changed later."),
        widget=forms.TextInput(attrs={"class": "input"}),
    )
    again = forms.BooleanField(
        required=False,
        label=lazy("It is enrolled already and joins again"),
        help_text=lazy("Its present token and password end when it has joined."),
    )


@require_http_methods(["GET", "HEAD", "POST"])
@operator_required
@never_cache
def machine_add(request: HttpRequest) -> HttpResponseBase:
    """List the latest join tokens; make one and show it once."""
    if request.method != "POST":
        name = request.GET.get("name", "")[:63]
        initial = {"name": name, "again": bool(name)}
        return _page(request, MachineForm(initial=initial if name else {}))
    form = MachineForm(request.POST)
    if not reachable_broker(settings.REDIS_URL):
        return _page(request, form, status=409)
    if not form.is_valid():
        return _page(request, form, status=422)
    try:
        join, token = service.make_token(
            name=form.cleaned_data["name"],
            again=form.cleaned_data["again"],
            actor=reader(request),
            now=timezone.now(),
        )
    except FieldsRefused as error:
        return _page(request, form, status=add_errors(form, error))
    origin = portal_origin(request)
    # The token is no part of the line: all users of a machine see its arguments.
    line = f"curl -fsS {origin}/join.sh | sudo sh"
    line_ca = f"curl -fsS --cacert ca.pem {origin}/join.sh | sudo sh -s -- --ca ca.pem"
    return _join_page(request, join, line=line, line_ca=line_ca, token=token.text())


@require_safe
@operator_required
@never_cache
def machine_join(request: HttpRequest, pk: int) -> HttpResponse:
    """Show what became of a join token."""
    return _join_page(request, get_object_or_404(NodeJoin, pk=pk))


@require_POST
@operator_required
def withdraw(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Withdraw a token that waits."""
    done = service.withdraw_token(join_id=pk, actor=reader(request), now=timezone.now())
    if done:
        messages.success(request, gettext("The token no longer works."))
    else:
        messages.error(request, gettext("The token had ended or was used already."))
    return redirect("manage-machine-add")


def _join_page(request: HttpRequest, join: NodeJoin, **shown: str) -> HttpResponse:
    now = timezone.now()
    state = join.state(now)
    page: dict[str, Any] = {
        "tab": "pools",
        "join": join,
        "state": state,
        "waits": state == NodeJoin.State.WAITING,
        "done": state not in (NodeJoin.State.WAITING, NodeJoin.State.USED)
        or is_complete(join),
        "rows": join_rows(join, now),
        "plain_http": portal_origin(request).startswith("http:"),
        **shown,
    }
    return render(request, "gpuportal/node_join/machine_join.html", page)


def _page(
    request: HttpRequest, form: MachineForm, *, status: int = 200
) -> HttpResponse:
    now = timezone.now()
    joins = NodeJoin.objects.select_related("node")[:JOINS_SHOWN]
    page = {
        "tab": "pools",
        "form": form,
        "joins": [(join, join.state(now)) for join in joins],
        "reachable": reachable_broker(settings.REDIS_URL),
        "doubtful": doubtful_nodes(now),
    }
    return render(request, "gpuportal/node_join/machine_add.html", page, status=status)

"""The operator's pages: register services, change, rotate, switch off and delete."""

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from gpuportal.openid_provider.forms import (
    NewServiceForm,
    ServiceForm,
    initial_of,
)
from gpuportal.openid_provider.provider import issuer
from reservations.accounts.openid_clients import service
from reservations.accounts.openid_clients.queries import clients_with_people
from reservations.accounts.openid_clients.rules import EMAIL, GROUPS, PROFILE
from reservations.accounts.second_factors.sign_in import proof_needed
from reservations.models import OpenidClient
from reservations.store.access import operator_required, reader


@require_http_methods(["GET", "HEAD", "POST"])
@operator_required
@never_cache
def services(request: HttpRequest) -> HttpResponseBase:
    """List the services; register one, and show its secret once."""
    _check_on()
    if request.method != "POST":
        form = NewServiceForm(initial={"scopes": [PROFILE, EMAIL, GROUPS]})
        return _list(request, form)
    form = NewServiceForm(request.POST)
    if proof_needed(request):
        return _list(request, form, status=403)
    if not form.is_valid():
        return _list(request, form, status=422)
    made, secret = service.make_client(
        fields=form.fields_of_client(),
        public=form.cleaned_data["public"],
        actor=reader(request),
        now=timezone.now(),
    )
    return _page(request, made, fresh_secret=secret, fresh=True)


@require_http_methods(["GET", "HEAD", "POST"])
@operator_required
@never_cache
def service_page(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Show a service; change it, replace its secret, switch it off, delete it."""
    _check_on()
    client = get_object_or_404(OpenidClient, pk=pk)
    if request.method != "POST":
        return _page(request, client)
    act = request.POST.get("act", "save")
    now, actor = timezone.now(), reader(request)
    # To switch off needs no second factor again, because it is urgent.
    if act != "off" and proof_needed(request):
        form = ServiceForm(request.POST, client=client) if act == "save" else None
        return _page(request, client, form, status=403)
    if act == "rotate":
        secret = service.rotate_secret(client_pk=pk, actor=actor, now=now)
        client.refresh_from_db()
        return _page(request, client, fresh_secret=secret)
    if act in ("off", "on"):
        service.set_enabled(client_pk=pk, enabled=act == "on", actor=actor, now=now)
        said = (
            gettext("People can sign in to %(name)s again.")
            if act == "on"
            else gettext("Nobody can sign in to %(name)s any more.")
        )
        messages.success(request, said % {"name": client.name})
        return redirect("manage-service", pk)
    if act == "delete":
        if request.POST.get("typed", "").strip() != client.name:
            error = gettext("Type “%(name)s” to confirm.") % {"name": client.name}
            return _page(request, client, delete_error=error, status=422)
        name = service.delete_client(client_pk=pk, actor=actor, now=now)
        messages.success(request, gettext("%(name)s was deleted.") % {"name": name})
        return redirect("manage-services")
    form = ServiceForm(request.POST, client=client)
    if not form.is_valid():
        return _page(request, client, form, status=422)
    changed = service.change_client(
        client_pk=pk, fields=form.fields_of_client(), actor=actor, now=now
    )
    messages.success(
        request, gettext("Saved.") if changed else gettext("Nothing was changed.")
    )
    return redirect("manage-service", pk)


def _check_on() -> None:
    """Raises Http404: the site does not offer this."""
    if not settings.OPENID_PROVIDER:
        raise Http404


def _list(
    request: HttpRequest, form: NewServiceForm, *, status: int = 200
) -> HttpResponse:
    page = {
        "tab": "people",
        "form": form,
        "clients": clients_with_people(),
        "proof_needed": proof_needed(request),
    }
    return render(
        request, "gpuportal/openid_provider/services.html", page, status=status
    )


def _page(
    request: HttpRequest,
    client: OpenidClient,
    form: ServiceForm | None = None,
    *,
    status: int = 200,
    **more: Any,
) -> HttpResponse:
    page = {
        "tab": "people",
        "client": client,
        "form": form or ServiceForm(initial=initial_of(client)),
        "people": client.consents.count(),
        "issuer": issuer(),
        "addresses": [
            (gettext("Authorization"), issuer() + reverse("openid-authorize")),
            (gettext("Token"), issuer() + reverse("openid-token")),
            (gettext("UserInfo"), issuer() + reverse("openid-userinfo")),
        ],
        "proof_needed": proof_needed(request),
        **more,
    }
    return render(
        request, "gpuportal/openid_provider/service.html", page, status=status
    )

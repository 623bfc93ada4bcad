"""The wall behind a link, without a login, and the operator's list of such links."""

from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from gpuportal.board import wall_links
from reservations.models import SitePolicy
from reservations.store.access import operator_required, reader
from telemetry.web.plain_forms import PlainForm
from telemetry.web.query_filters import whole_number


class WallForm(PlainForm):
    """A new link."""

    label = forms.CharField(
        max_length=60,
        label=lazy("Where the screen hangs"),
        widget=forms.TextInput(
            attrs={"class": "input", "placeholder": lazy("corridor, 2nd floor")}
        ),
    )
    names = forms.BooleanField(required=False, label=lazy("Show people’s names"))


@require_safe
@never_cache
@login_not_required
def wall(request: HttpRequest, token: str) -> HttpResponse:
    """Show the wall on a screen without a login."""
    if wall_links.link_of(token[:100]) is None:
        return render(request, "gpuportal/board/wall_gone.html", status=404)
    page = {"socket": {"path": f"/ws/wall/{token[:100]}/"}}
    return render(request, "gpuportal/board/wall.html", page)


@require_http_methods(["GET", "HEAD", "POST"])
@operator_required
@never_cache
def links(request: HttpRequest) -> HttpResponseBase:
    """List the links; make one, revoke one."""
    if request.method != "POST":
        return _page(request, WallForm())
    now, actor = timezone.now(), reader(request)
    if request.POST.get("act") == "revoke":
        pk = whole_number(request.POST.get("link", ""))
        done = wall_links.revoke(link_id=pk, actor=actor, now=now)
        said = (
            gettext("The link no longer works.")
            if done
            else gettext("It had ended already.")
        )
        messages.success(request, said)
        return redirect("manage-walls")
    form = WallForm(request.POST)
    if not form.is_valid():
        return _page(request, form, status=422)
    _, text = wall_links.make(**form.cleaned_data, actor=actor, now=now)
    url = request.build_absolute_uri(reverse("wall", args=[text]))
    return _page(request, WallForm(), fresh_link=url)


def _page(
    request: HttpRequest, form: WallForm, *, fresh_link: str = "", status: int = 200
) -> HttpResponse:
    page = {
        "tab": "pools",
        "form": form,
        "fresh_link": fresh_link,
        "links": wall_links.working(),
        "names_visible": SitePolicy.current().names_visible,
    }
    return render(request, "gpuportal/board/wall_links.html", page, status=status)

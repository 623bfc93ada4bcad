"""The page behind an invitation: choose a password, once.

The link's text goes into the session at once and out of the address, so that no log
of a proxy and no Referer of the page's own requests holds it for long.
"""

from django import forms
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_safe

from reservations.accounts import invitations
from reservations.accounts.second_factors.sign_in import begin_session
from reservations.rules.errors import NotFound
from telemetry.protocol.sentences import sentence
from telemetry.web.plain_forms import PlainForm

KEY = "invitation"
BACKEND = "django.contrib.auth.backends.ModelBackend"


class PasswordForm(PlainForm):
    """A new password, typed twice."""

    password = forms.CharField(
        label=gettext_lazy("Password"), max_length=200, strip=False
    )
    again = forms.CharField(
        label=gettext_lazy("Password again"), max_length=200, strip=False
    )

    def clean_again(self) -> str:
        """Compare the two.

        Raises:
            ValidationError: they differ.
        """
        again: str = self.cleaned_data["again"]
        if again != self.cleaned_data.get("password", again):
            raise ValidationError(gettext("The two passwords differ."))
        return again


@require_safe
@never_cache
@login_not_required
def welcome(request: HttpRequest, token: str) -> HttpResponseBase:
    """Store a link in the session, and redirect to the page that uses it.

    Only a valid link begins a session. Otherwise anybody could fill the table.
    """
    try:
        _check_passwords()
        invitations.invitation_of(token[:100], now=timezone.now())
    except NotFound:
        return _page(request, status=404)
    request.session[KEY] = token[:100]
    return redirect("choose-password")


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@sensitive_post_parameters("password", "again")
@login_not_required
def choose(request: HttpRequest) -> HttpResponseBase:
    """Let an invited person choose a password, and sign them in."""
    text = request.session.get(KEY, "")
    now = timezone.now()
    try:
        _check_passwords()
        found = invitations.invitation_of(text, now=now)
    except NotFound:
        return _page(request, status=404)
    form = PasswordForm(request.POST if request.method == "POST" else None)
    if request.method != "POST":
        return _page(request, form, user_name=found.user.username)
    if form.is_valid():
        try:
            user = invitations.accept(
                text=text, password=form.cleaned_data["password"], now=now
            )
        except ValidationError as error:
            form.add_error("password", error)
        except NotFound:
            return _page(request, status=404)
        else:
            request.session.flush()
            board = reverse("board")
            answer = begin_session(request, user, backend=BACKEND, back=board)
            return redirect(board) if request.user.is_authenticated else answer
    return _page(request, form, user_name=found.user.username, status=422)


def _check_passwords() -> None:
    """Refuse links where people sign in with an identity provider only.

    Raises:
        NotFound: the site has no passwords.
    """
    if not settings.LOGIN_SETTINGS.passwords:
        raise NotFound(what=sentence("such invitation, or it is used or too old"))


def _page(
    request: HttpRequest,
    form: PasswordForm | None = None,
    *,
    user_name: str = "",
    status: int = 200,
) -> HttpResponse:
    page = {"form": form, "user_name": user_name}
    return render(request, "reservations/accounts/welcome.html", page, status=status)

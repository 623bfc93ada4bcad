"""The page on which a signed-in person connects their login of the LDAP directory."""

from axes.backends import AxesStandaloneBackend
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import (
    sensitive_post_parameters,
    sensitive_variables,
)
from django.views.decorators.http import require_http_methods

from gpuportal.directory.directory_backend import claims_at, count_failure
from gpuportal.directory.forms import DirectoryLoginForm, refusal_errors
from gpuportal.http.login_limits import SprayBackend
from reservations.accounts.identities import service
from reservations.accounts.identities.directory_settings import Directory
from reservations.accounts.identities.queries import directory
from reservations.accounts.identities.rules import SignInRefused
from reservations.accounts.second_factors.sign_in import proof_required
from reservations.store.access import reader


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@sensitive_post_parameters("password")
@proof_required(back="me")
def connect(request: HttpRequest) -> HttpResponseBase:
    """Ask for the login, and connect it. Later the person can sign in with it."""
    found = directory()
    if found is None:
        raise Http404
    form = DirectoryLoginForm(request.POST if request.method == "POST" else None)
    status = 200
    if request.method == "POST":
        status = _connect(request, found, form)
        if not form.errors:
            messages.success(
                request, gettext("%(name)s is connected.") % {"name": found.name}
            )
            return redirect("me")
    page = {"provider": found, "form": form}
    return render(request, "gpuportal/directory/connect.html", page, status=status)


@sensitive_variables("form", "password")
def _connect(request: HttpRequest, found: Directory, form: DirectoryLoginForm) -> int:
    """Connect the login of a form, or add errors to it. Return the status.

    Failures count as those of the sign-in page do, so that nobody guesses the passwords
    of others here.

    Raises:
        PermissionDenied: there were too many failures. django-axes answers.
        TooFast: the limit of the address is exceeded.
    """
    if not form.is_valid():
        return 422
    user = form.cleaned_data["username"]
    password = form.cleaned_data["password"]
    try:
        for backend in (AxesStandaloneBackend(), SprayBackend()):
            backend.authenticate(request, username=user, password=password)
    except PermissionDenied:
        count_failure(request, user)
        raise
    try:
        claims = claims_at(found, request, user=user, password=password)
        if claims is not None:
            service.connect(
                user=reader(request),
                provider=found,
                claims=claims,
                now=timezone.now(),
            )
            return 200
    except SignInRefused as refusal:
        form.add_error(None, refusal_errors(refusal))
        return refusal.status
    count_failure(request, user)
    form.add_error(None, gettext("Wrong user name or password."))
    return 422

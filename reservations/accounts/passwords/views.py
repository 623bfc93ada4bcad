"""The pages for a forgotten password and for a new one. The flow is Django's."""

from typing import Any

from axes.helpers import get_client_ip_address
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import (
    PasswordChangeView,
    PasswordResetConfirmView,
    PasswordResetView,
)
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse_lazy
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from kombu.exceptions import OperationalError

from reservations.accounts import tasks
from reservations.accounts.identities.queries import identity_sources
from reservations.accounts.passwords import password_mail, service
from reservations.accounts.passwords.forms import (
    NewPasswordForm,
    OwnPasswordForm,
    ResetAddressForm,
)
from reservations.models import User
from reservations.rules.errors import NotFound
from reservations.store.access import reader
from reservations.web.rate_limits import check_address_rate, check_rate
from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import sentence

REQUESTS_PER_MINUTE = 10
"""Most requests for a link from one address."""
TRIES_PER_MINUTE = 5
"""Most attempts of a person to change the password, so that an open browser does not
help to guess it."""
FOLDER = "reservations/accounts/passwords"


class ForgottenPassword(PasswordResetView):
    """Asks for a mail address. A worker looks it up, so every answer is the same."""

    form_class = ResetAddressForm
    template_name = f"{FOLDER}/forgotten.html"
    success_url = reverse_lazy("password-reset-sent")

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Add what people do here if the site mails no links."""
        return super().get_context_data(
            **kwargs,
            possible=password_mail.possible(),
            passwords=settings.LOGIN_SETTINGS.passwords,
            providers=identity_sources(),
        )

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Queue the mail. A site that mails no links shows what to do instead."""
        if not password_mail.possible():
            return self.get(request, *args, **kwargs)
        check_address_rate(
            "password-reset",
            address=get_client_ip_address(request) or "unknown",
            per_minute=REQUESTS_PER_MINUTE,
            now=timezone.now(),
        )
        return super().post(request, *args, **kwargs)

    def form_valid(self, form: Any) -> HttpResponse:
        """Queue the mail.

        Raises:
            RequestRefused: the broker is away.
        """
        try:
            tasks.mail_password_link.delay(form.cleaned_data["email"])
        except OperationalError as error:
            raise RequestRefused(
                "unavailable",
                sentence("No mail was sent. Try again in a moment."),
                title=sentence("The portal cannot send mail at the moment"),
            ) from error
        return redirect(str(self.success_url))

    def form_invalid(self, form: Any) -> HttpResponse:
        """Show the fault by the field."""
        return self.render_to_response(self.get_context_data(form=form), status=422)


@require_safe
@login_not_required
def link_sent(request: HttpRequest) -> HttpResponseBase:
    """Say that a mail is under way if the address has an account."""
    page = {"minutes": settings.PASSWORD_RESET_TIMEOUT // 60}
    return render(request, f"{FOLDER}/link_sent.html", page)


class PasswordByLink(PasswordResetConfirmView):
    """Lets a person who followed a mailed link choose a password, once."""

    form_class = NewPasswordForm
    template_name = f"{FOLDER}/choose.html"

    def get_user(self, uidb64: str) -> User | None:
        """Return the person of a link who may have a password here."""
        if not settings.LOGIN_SETTINGS.passwords:
            return None
        found = super().get_user(uidb64)
        if not isinstance(found, User) or not found.is_active or found.erased_at:
            return None
        return found if found.has_usable_password() else None

    def form_valid(self, form: Any) -> HttpResponse:
        """Set the password. The person signs in with it, as always."""
        assert isinstance(self.user, User)
        try:
            service.reset(
                seen=self.user,
                password=form.cleaned_data["new_password1"],
                end_keys=form.cleaned_data["end_keys"],
                now=timezone.now(),
            )
        except NotFound:
            self.validlink = False
            return self.render_to_response(self.get_context_data())
        self.request.session.flush()
        tasks.queue_notice(tasks.mail_password_notice, self.user.pk)
        messages.success(
            self.request,
            gettext("Your password was changed. Sign in with the new one."),
        )
        return redirect("login")

    def render_to_response(
        self, context: dict[str, Any], **response_kwargs: Any
    ) -> HttpResponse:
        """Answer 404 to a link that no longer works, and 422 to invalid fields."""
        form = context.get("form")
        status = 404 if form is None else 422 if form.errors else 200
        return super().render_to_response(
            {**context, "minutes": settings.PASSWORD_RESET_TIMEOUT // 60},
            status=status,
            **response_kwargs,
        )


@method_decorator(never_cache, name="dispatch")
class OwnPassword(PasswordChangeView):
    """Changes the password of the signed-in person, who types the current one."""

    form_class = OwnPasswordForm
    template_name = f"{FOLDER}/change.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Add whether the person has a password at all."""
        user = reader(self.request)
        has_one = settings.LOGIN_SETTINGS.passwords and user.has_usable_password()
        return super().get_context_data(**kwargs, has_password=has_one)

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Change it, a few times a minute at most."""
        user = reader(request)
        if not (settings.LOGIN_SETTINGS.passwords and user.has_usable_password()):
            return self.get(request, *args, **kwargs)
        check_rate(
            "password-change",
            user_pk=user.pk,
            per_minute=TRIES_PER_MINUTE,
            now=timezone.now(),
        )
        return super().post(request, *args, **kwargs)

    def form_valid(self, form: Any) -> HttpResponse:
        """Set the password. Every other browser is signed out."""
        try:
            user = service.change(
                user_pk=reader(self.request).pk,
                current=form.cleaned_data["old_password"],
                password=form.cleaned_data["new_password1"],
                now=timezone.now(),
            )
        except NotFound:
            wrong = OwnPasswordForm.error_messages["password_incorrect"]
            form.add_error("old_password", ValidationError(wrong))
            return self.form_invalid(form)
        update_session_auth_hash(self.request, user)
        tasks.queue_notice(tasks.mail_password_notice, user.pk)
        messages.success(
            self.request,
            gettext("Your password was changed. All other browsers were signed out."),
        )
        return redirect("me")

    def form_invalid(self, form: Any) -> HttpResponse:
        """Show the faults by the fields."""
        return self.render_to_response(self.get_context_data(form=form), status=422)

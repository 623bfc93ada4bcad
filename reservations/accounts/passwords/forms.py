"""Forms of passwords: Django's, with plain errors."""

from django import forms
from django.contrib.auth.forms import (
    PasswordChangeForm,
    PasswordResetForm,
    SetPasswordForm,
)
from django.utils.translation import gettext_lazy as lazy

from telemetry.web.plain_forms import PlainErrors

DIFFER = lazy("The two passwords differ.")


class ResetAddressForm(PlainErrors, PasswordResetForm):
    """The mail address that gets a link to a new password."""


class NewPasswordForm(PlainErrors, SetPasswordForm):  # type: ignore[type-arg]
    """A new password, typed twice, and whether the keys of the person end."""

    end_keys = forms.BooleanField(required=False)
    error_messages = {"password_mismatch": DIFFER}


class OwnPasswordForm(PlainErrors, PasswordChangeForm):  # type: ignore[type-arg]
    """The current password, and a new one typed twice."""

    error_messages = {
        "password_mismatch": DIFFER,
        "password_incorrect": lazy("This is not your current password."),
    }

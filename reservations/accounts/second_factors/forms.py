"""Forms of second factors."""

from django import forms
from django.utils.translation import gettext_lazy as lazy

from reservations.accounts.second_factors.passkeys import LONGEST_ANSWER
from telemetry.web.plain_forms import PlainForm

LONGEST_CODE = 40


class FactorForm(PlainForm):
    """The name of a new factor, and the password of a person who has none yet."""

    name = forms.CharField(max_length=60, required=False)
    password = forms.CharField(max_length=4096, required=False, strip=False)


class AppForm(FactorForm):
    """The first code of a new authenticator app."""

    code = forms.CharField(max_length=LONGEST_CODE)


class PasskeyForm(FactorForm):
    """The browser's answer about a new passkey."""

    passkey = forms.CharField(
        max_length=LONGEST_ANSWER,
        error_messages={"required": lazy("The browser sent no passkey. Try again.")},
    )


class ProofForm(PlainForm):
    """A code, or the signature of a passkey."""

    code = forms.CharField(max_length=LONGEST_CODE, required=False)
    passkey = forms.CharField(max_length=LONGEST_ANSWER, required=False)

"""The user name and password of the LDAP directory."""

from django import forms
from django.utils.translation import gettext_lazy as lazy

from gpuportal.directory.directory_client import LONGEST_NAME, LONGEST_PASSWORD
from reservations.accounts.identities.rules import SignInRefused
from reservations.models import User
from telemetry.web.plain_forms import PlainForm
from telemetry.web.translation import translated


class DirectoryLoginForm(PlainForm):
    """The login that a signed-in person connects."""

    username = forms.CharField(max_length=LONGEST_NAME, label=lazy("User name"))
    password = forms.CharField(
        max_length=LONGEST_PASSWORD,
        strip=False,
        label=lazy("Password"),
        widget=forms.PasswordInput,
    )

    def clean_username(self) -> str:
        """Return the one way to write it under which failures are counted."""
        return counted_name(self.cleaned_data["username"])


def counted_name(typed: str) -> str:
    """Return one name for all ways to write it that a directory takes for one.

    It is the portal's user name if there is exactly one, because logins are counted by
    that one (``http/login_limits.py``).
    """
    found = User.objects.filter(username__iexact=typed)
    names = list(found.values_list("username", flat=True)[:3])
    if typed in names:
        return typed
    return names[0] if len(names) == 1 else typed.lower()


def refusal_errors(refusal: SignInRefused) -> forms.ValidationError:
    """Return the title and the reason of a refusal as errors of a form."""
    texts = (f"{translated(refusal.title)}.", translated(refusal.why))
    return forms.ValidationError([forms.ValidationError(text) for text in texts])

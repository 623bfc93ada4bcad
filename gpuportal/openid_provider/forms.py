"""The forms that register and change a service."""

from typing import Any

from django import forms
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as lazy

from reservations.accounts.openid_clients.rules import (
    EMAIL,
    GROUPS,
    OFFLINE,
    OPENID,
    PROFILE,
    SCOPES,
    RedirectInvalid,
    read_redirect_uris,
)
from reservations.accounts.openid_clients.service import ClientFields
from reservations.models import OpenidClient
from telemetry.web.plain_forms import PlainForm
from telemetry.web.translation import translated

CHOICES = [
    (PROFILE, lazy("name and user name (profile)")),
    (EMAIL, lazy("mail address (email)")),
    (GROUPS, lazy("groups (groups)")),
    (OFFLINE, lazy("stay signed in for up to 30 days (offline_access)")),
]


class ServiceForm(PlainForm):
    """A service."""

    name = forms.CharField(
        max_length=60,
        label=lazy("Name, as people know it"),
        widget=forms.TextInput(attrs={"class": "input", "placeholder": "Grafana"}),
    )
    redirect_uris = forms.CharField(
        max_length=5000,
        label=lazy("Addresses to which people go back, one a line"),
        help_text=lazy(
            "The documentation of the service calls them redirect or callback URLs. "
            "They are compared exactly."
        ),
        widget=forms.Textarea(
            attrs={
                "class": "input",
                "rows": 3,
                "spellcheck": "false",
                "placeholder": "https://grafana.lab.example/login/generic_oauth",
            }
        ),
    )
    scopes = forms.MultipleChoiceField(
        choices=CHOICES,
        required=False,
        label=lazy("What it may ask for"),
        widget=forms.CheckboxSelectMultiple,
    )

    def __init__(
        self, *args: Any, client: OpenidClient | None = None, **named: Any
    ) -> None:
        super().__init__(*args, **named)
        self.client = client

    def clean_name(self) -> str:
        """Refuse the name of another service, because people know them by it.

        Raises:
            ValidationError: it is taken.
        """
        name: str = self.cleaned_data["name"]
        others = OpenidClient.objects.filter(name__iexact=name)
        if self.client is not None:
            others = others.exclude(pk=self.client.pk)
        if others.exists():
            raise forms.ValidationError(gettext("Another service has this name."))
        return name

    def clean_redirect_uris(self) -> list[str]:
        """Return the addresses.

        Raises:
            ValidationError: one of them must not be registered.
        """
        try:
            return read_redirect_uris(self.cleaned_data["redirect_uris"])
        except RedirectInvalid as error:
            raise forms.ValidationError(translated(error.why)) from error

    def fields_of_client(self) -> ClientFields:
        """Return what was entered. Every service may ask for openid."""
        chosen = {OPENID, *self.cleaned_data["scopes"]}
        return ClientFields(
            name=self.cleaned_data["name"],
            redirect_uris=self.cleaned_data["redirect_uris"],
            scopes=[scope for scope in SCOPES if scope in chosen],
        )


class NewServiceForm(ServiceForm):
    """A new service."""

    public = forms.BooleanField(
        required=False,
        label=lazy("It cannot keep a secret"),
        help_text=lazy(
            "For programs on people’s own machines. They must use PKCE, and people are "
            "asked at every sign-in."
        ),
    )


def initial_of(client: OpenidClient) -> dict[str, Any]:
    """Return the values of the form of a service."""
    return {
        "name": client.name,
        "redirect_uris": "\n".join(client.redirect_uris),
        "scopes": client.scopes,
    }

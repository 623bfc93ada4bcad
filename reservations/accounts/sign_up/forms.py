"""The forms of a visitor who signs up, and the list of domains of the admin."""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.utils.translation import gettext, gettext_lazy

from reservations.accounts.sign_up.rules import (
    LONGEST_ADDRESS,
    AddressInvalid,
    MailAddress,
    entry_of,
    read_address,
    read_domain,
    shown_domain,
)
from reservations.models import SignUpDomain
from reservations.web.table_form import TableRows, table_form
from telemetry.web.plain_forms import PlainForm
from telemetry.web.translation import translated

MOST_DOMAINS = 200
EMPTY_ROWS = 3


class AddressForm(PlainForm):
    """The mail address of a visitor."""

    email = forms.CharField(max_length=LONGEST_ADDRESS)

    def __init__(self, *args: Any, domains: Mapping[str, SignUpDomain]) -> None:
        super().__init__(*args)
        self.domains = domains

    def clean_email(self) -> MailAddress:
        """Require an address of a listed domain.

        Raises:
            ValidationError: it is none.
        """
        try:
            found = read_address(self.cleaned_data["email"])
        except AddressInvalid as error:
            raise forms.ValidationError(translated(error.why)) from error
        if entry_of(found.domain, self.domains) is None:
            raise forms.ValidationError(
                gettext("Addresses at %(domain)s cannot sign up.")
                % {"domain": shown_domain(found.domain)}
            )
        return found


class SignUpForm(PlainForm):
    """The name and the password of a new person."""

    name = forms.CharField(max_length=80)
    password = forms.CharField(max_length=200, strip=False)
    again = forms.CharField(max_length=200, strip=False)

    def clean_again(self) -> str:
        """Compare the two passwords.

        Raises:
            ValidationError: they differ.
        """
        again: str = self.cleaned_data["again"]
        if again != self.cleaned_data.get("password", again):
            raise forms.ValidationError(gettext("The two passwords differ."))
        return again


class DomainRowForm(PlainForm):
    """One row of the list. A row without a domain is left out."""

    domain = forms.CharField(
        required=False,
        max_length=255,
        label=gettext_lazy("Mail domain"),
        widget=forms.TextInput(
            attrs={"class": "input", "autocomplete": "off", "spellcheck": "false"}
        ),
    )
    account = forms.TypedChoiceField(
        required=False,
        coerce=int,
        empty_value=None,
        label=gettext_lazy("Group"),
        widget=forms.Select(attrs={"class": "select"}),
    )

    def __init__(
        self, *args: Any, accounts: list[tuple[int, str]], **named: Any
    ) -> None:
        super().__init__(*args, **named)
        field = self.fields["account"]
        assert isinstance(field, forms.TypedChoiceField)
        field.choices = [("", gettext("none")), *accounts]

    def clean_domain(self) -> str:
        """Return it as addresses are compared.

        Raises:
            ValidationError: it is no domain.
        """
        typed: str = self.cleaned_data["domain"]
        try:
            return read_domain(typed) if typed else ""
        except AddressInvalid as error:
            raise forms.ValidationError(translated(error.why)) from error

    def clean(self) -> dict[str, Any]:
        """Require a domain for a group."""
        data = super().clean() or self.cleaned_data
        wrong = "domain" in self.errors
        if data.get("account") and not data.get("domain") and not wrong:
            self.add_error("domain", gettext("Fill this in, or remove the row."))
        return data


class DomainRows(TableRows):
    """All rows of the list."""

    main_field = "domain"
    unique_fields = ("domain",)
    repeated_text = gettext_lazy("Another row has this domain.")

    def wanted(self) -> dict[str, int | None]:
        """Return the group of each domain that stays."""
        return {data["domain"]: data["account"] for data in self.kept_data()}


def domain_rows(data: Any, stored: Mapping[str, SignUpDomain]) -> Any:
    """Return the list with the stored rows and some empty ones."""
    initial = [
        {"domain": shown_domain(entry), "account": row.account_id}
        for entry, row in stored.items()
    ]
    return table_form(
        DomainRowForm, DomainRows, data, initial, most=MOST_DOMAINS, empty=EMPTY_ROWS
    )

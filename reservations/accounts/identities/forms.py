"""The table of what the values of a groups claim give."""

from typing import Any

from django import forms
from django.utils.translation import gettext, gettext_lazy

from reservations.accounts.identities.identity_source import folded_group
from reservations.accounts.identities.rules import LONGEST_VALUE, Mapped
from reservations.models import ClaimRole
from reservations.web.table_form import TableRows, table_form
from telemetry.web.plain_forms import PlainForm

MOST_MAPPINGS = 500
EMPTY_ROWS = 5
ROLES = [
    (ClaimRole.MEMBER.value, gettext_lazy("member")),
    (ClaimRole.HEAD.value, gettext_lazy("head")),
    (ClaimRole.OPERATOR.value, gettext_lazy("admin of the portal")),
]


class MappingRowForm(PlainForm):
    """One row of the table. A row without a value is left out."""

    value = forms.CharField(
        required=False,
        max_length=LONGEST_VALUE,
        label=gettext_lazy("Value of the claim"),
        widget=forms.TextInput(
            attrs={"class": "input", "list": "claim-values", "autocomplete": "off"}
        ),
    )
    role = forms.ChoiceField(
        choices=ROLES,
        initial=ClaimRole.MEMBER.value,
        label=gettext_lazy("Role"),
        widget=forms.Select(attrs={"class": "select"}),
    )
    account = forms.TypedChoiceField(
        required=False,
        coerce=int,
        empty_value=None,
        label=gettext_lazy("Group"),
        widget=forms.Select(attrs={"class": "select"}),
    )

    def __init__(
        self,
        *args: Any,
        accounts: list[tuple[int, str]],
        folds_case: bool,
        **named: Any,
    ):
        super().__init__(*args, **named)
        self.folds_case = folds_case
        field = self.fields["account"]
        assert isinstance(field, forms.TypedChoiceField)
        field.choices = [("", "–"), *accounts]

    def clean_value(self) -> str:
        """Write the value as sign-ins compare it."""
        value: str = self.cleaned_data["value"]
        return folded_group(value) if self.folds_case else value

    def clean(self) -> dict[str, Any]:
        """Require a value and a group where they are needed."""
        data = super().clean() or self.cleaned_data
        value, account, role = (data.get(x) for x in ("value", "account", "role"))
        operator = role == ClaimRole.OPERATOR.value
        if not value and "value" not in self.errors and (account or operator):
            self.add_error("value", gettext("Fill this in, or remove the row."))
        if value and "account" not in self.errors and operator == bool(account):
            words = (
                gettext(
                    "An admin has rights in the whole portal. Leave the group empty."
                )
                if operator
                else gettext("Choose a group.")
            )
            self.add_error("account", words)
        return data


class MappingRows(TableRows):
    """All rows of a provider."""

    main_field = "value"
    unique_fields = ("value", "account")
    repeated_text = gettext_lazy("Another row has this value and group.")

    def mappings(self) -> list[Mapped]:
        """Return the rows that stay."""
        return [
            Mapped(data["value"], data["account"], data["role"])
            for data in self.kept_data()
        ]


def mapping_rows(data: Any, stored: list[Mapped], *, folds_case: bool) -> Any:
    """Return the table with the stored rows and some empty ones.

    Args:
        folds_case: values are compared in small letters.
    """
    initial = [
        {"value": one.value, "role": one.role, "account": one.account_pk}
        for one in stored
    ]
    return table_form(
        MappingRowForm,
        MappingRows,
        data,
        initial,
        most=MOST_MAPPINGS,
        empty=EMPTY_ROWS,
        folds_case=folds_case,
    )

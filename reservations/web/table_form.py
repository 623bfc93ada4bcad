"""A table of an admin whose rows are forms: stored rows, and some empty ones."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy

from reservations.models import Account
from telemetry.web.plain_forms import PlainForm


class TableRows(forms.BaseFormSet):  # type: ignore[type-arg]
    """All rows of a table. A row without its main field is left out."""

    main_field = ""
    unique_fields: Sequence[str] = ()
    """No two rows have the same values in them."""
    repeated_text: Any = ""
    """Shown at a row that repeats another one."""
    default_error_messages = {
        "missing_management_form": gettext_lazy("Load the page again."),
        "too_many_forms": gettext_lazy("These are too many rows."),
    }

    def clean(self) -> None:
        """Refuse the same values twice."""
        seen = set()
        for row, data in self._kept():
            key = tuple(data.get(name) for name in self.unique_fields)
            if key in seen:
                row.add_error(self.main_field, self.repeated_text)
            seen.add(key)

    def kept_data(self) -> list[dict[str, Any]]:
        """Return the values of the rows that stay."""
        return [data for _row, data in self._kept()]

    def _kept(self) -> list[tuple[PlainForm, dict[str, Any]]]:
        rows = [(row, getattr(row, "cleaned_data", {})) for row in self.forms]
        return [
            (row, data)
            for row, data in rows
            if data.get(self.main_field) and not data.get("DELETE")
        ]


def table_form(
    row: type[PlainForm],
    rows: type[TableRows],
    data: Any,
    initial: Iterable[Mapping[str, Any]],
    *,
    most: int,
    empty: int,
    **named: Any,
) -> Any:
    """Return a table of rows that name groups.

    Args:
        row: takes the groups as ``accounts``, and what else is named.
        data: what was posted; None: nothing.
        most: rows that the table can have.
        empty: rows that are added to fill in.
    """
    kind = forms.formset_factory(
        row,
        formset=rows,
        extra=empty,
        can_delete=True,
        max_num=most,
        absolute_max=most,
        validate_max=True,
    )
    groups = Account.objects.filter(archived_at=None).order_by("name")
    accounts = [(one.pk, str(one)) for one in groups]
    return kind(
        data,
        initial=list(initial),
        prefix="rows",
        form_kwargs={"accounts": accounts, **named},
    )

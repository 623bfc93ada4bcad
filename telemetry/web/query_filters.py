"""Read the address of a page: valid parts are kept, and invalid ones are named."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django import forms
from django.utils.translation import gettext

from telemetry.web.local_time_field import clock_notes
from telemetry.web.translation import translated


@dataclass(frozen=True)
class QueryFilters:
    """The values of an address, and notices of its invalid parts."""

    values: dict[str, Any]
    notices: list[str] = field(default_factory=list)


def read_filters(
    form_class: type[forms.Form], query: Mapping[str, Any]
) -> QueryFilters:
    """Read an address leniently: keep the valid parts, name the invalid ones."""
    form = form_class(query)
    form.full_clean()
    notices = [
        gettext(
            "“%(name)s” in the page's address was not understood and is "
            "ignored: %(error)s"
        )
        % {"name": name, "error": translated(str(error))}
        for name, errors in form.errors.items()
        for error in errors
    ]
    return QueryFilters(form.cleaned_data, notices + clock_notes(form))


def whole_number(text: str) -> int:
    """Return a key or a version from an address or a form; 0 if it is invalid.

    >>> whole_number("17"), whole_number("-1"), whole_number("9" * 5000)
    (17, 0, 0)
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0

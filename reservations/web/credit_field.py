"""A number of credits that a person types, kept as weighted GPU-seconds."""

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext

HOUR = 3600
MOST_HOURS = 10**9


class Unreadable(ValueError):
    """The typed text is no such figure."""


def hours(gpu_seconds: int | None) -> str:
    """Return weighted GPU-seconds as the credits that an input shows; "" for None."""
    return "" if gpu_seconds is None else f"{gpu_seconds / HOUR:.10g}"


def read_quota(text: str) -> int | None:
    """Read credits as weighted GPU-seconds; empty: None.

    Raises:
        Unreadable: no number, or not between 0 and ``MOST_HOURS``.
    """
    if not text.strip():
        return None
    try:
        found = float(text.strip().replace(",", "."))
    except ValueError as error:
        raise Unreadable(gettext("enter credits, or leave it empty")) from error
    if not 0 <= found <= MOST_HOURS:
        raise Unreadable(gettext("not between 0 and 1,000,000,000 credits"))
    return round(found * HOUR)


class HoursField(forms.CharField):
    """Weighted GPU-hours as typed; whole GPU-seconds, or None for empty."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("max_length", 20)
        super().__init__(required=False, **kwargs)

    def clean(self, value: Any) -> Any:
        """Return seconds.

        Raises:
            ValidationError: no figure.
        """
        try:
            return read_quota(super().clean(value) or "")
        except Unreadable as error:
            raise ValidationError(str(error)) from error

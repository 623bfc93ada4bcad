"""Credits that a person types, stored as weighted GPU-seconds."""

import math
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext

HOUR = 3600
MOST_HOURS = 10**9


class Unreadable(ValueError):
    """The typed text is not a valid amount."""


def hours(gpu_seconds: int | None) -> str:
    """Return weighted GPU-seconds as the credits in an input. None: ""."""
    return "" if gpu_seconds is None else f"{gpu_seconds / HOUR:.10g}"


def read_credits(text: str) -> int:
    """Read credits as weighted GPU-seconds.

    Raises:
        ValueError: not a finite number.

    >>> read_credits("40"), read_credits("0,5")
    (144000, 1800)
    """
    found = float(text.strip().replace(",", "."))
    if not math.isfinite(found):
        raise ValueError(text)
    return round(found * HOUR)


def read_quota(text: str) -> int | None:
    """Read credits as weighted GPU-seconds. Empty: None.

    Raises:
        Unreadable: not a number, or not between 0 and ``MOST_HOURS``.
    """
    if not text.strip():
        return None
    try:
        found = read_credits(text)
    except ValueError as error:
        words = gettext("Enter a number of credits, such as 40, or leave this empty.")
        raise Unreadable(words) from error
    if not 0 <= found <= MOST_HOURS * HOUR:
        raise Unreadable(gettext("Choose between 0 and 1,000,000,000 credits."))
    return found


class HoursField(forms.CharField):
    """Weighted GPU-hours as typed, returned as whole GPU-seconds. Empty: None."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("max_length", 20)
        super().__init__(required=False, **kwargs)

    def clean(self, value: Any) -> Any:
        """Return seconds.

        Raises:
            ValidationError: not a valid amount.
        """
        try:
            return read_quota(super().clean(value) or "")
        except Unreadable as error:
            raise ValidationError(str(error)) from error

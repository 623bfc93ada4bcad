"""Fields for numbers, whose refusals say what would do."""

from typing import Any

from django import forms


def whole(least: int, most: int, **more: Any) -> forms.IntegerField:
    """Return a field for a whole number.

    >>> whole(1, 5).error_messages["max_value"]
    'must be a whole number from 1 to 5'
    """
    says = _same(f"must be a whole number from {least:,} to {most:,}")
    return forms.IntegerField(
        min_value=least, max_value=most, error_messages=says, **more
    )


def number(
    least: float, most: float, *, unit: str = "", open_end: bool = False, **more: Any
) -> forms.FloatField:
    """Return a field for a number.

    Args:
        unit: what is counted, in the plural.
        open_end: ``most`` is out of reach, and not worth a word.

    >>> number(0.25, 336, unit="hours").error_messages["invalid"]
    'must be a number of hours from 0.25 to 336'
    """
    what = f"a number of {unit}" if unit else "a number"
    span = f", {least:g} or more" if open_end else f" from {least:g} to {most:g}"
    return forms.FloatField(
        min_value=least, max_value=most, error_messages=_same(f"must be {what}{span}"),
        **more,
    )  # fmt: skip


def _same(text: str) -> dict[str, str]:
    return dict.fromkeys(("invalid", "min_value", "max_value"), text)

"""Fields for numbers, with errors that name the accepted range."""

from typing import Any

from django import forms

from telemetry.protocol.sentences import sentence


def whole_number_field(least: int, most: int, **more: Any) -> forms.IntegerField:
    """Return a field for a whole number.

    >>> whole_number_field(1, 5).error_messages["max_value"]
    'must be a whole number from 1 to 5'
    """
    says = _error_messages(
        sentence(
            "must be a whole number from {least} to {most}",
            least=f"{least:,}",
            most=f"{most:,}",
        )
    )
    return forms.IntegerField(
        min_value=least, max_value=most, error_messages=says, **more
    )


def number(
    least: float, most: float, *, unit: str = "", open_end: bool = False, **more: Any
) -> forms.FloatField:
    """Return a field for a number.

    Args:
        unit: the unit, in the plural.
        open_end: ``most`` is so high that the error does not mention it.

    >>> number(0.25, 336, unit="hours").error_messages["invalid"]
    'must be a number of hours from 0.25 to 336'
    """
    ends = {"least": f"{least:g}", "most": f"{most:g}", "unit": unit}
    if unit and open_end:
        says = sentence("must be a number of {unit}, {least} or more", **ends)
    elif unit:
        says = sentence("must be a number of {unit} from {least} to {most}", **ends)
    elif open_end:
        says = sentence("must be a number, {least} or more", **ends)
    else:
        says = sentence("must be a number from {least} to {most}", **ends)
    return forms.FloatField(
        min_value=least, max_value=most, error_messages=_error_messages(says), **more
    )


def _error_messages(text: str) -> dict[str, str]:
    return dict.fromkeys(("invalid", "min_value", "max_value"), text)

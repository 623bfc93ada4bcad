"""An instant that a person types on a clock that may be changed for summer time."""

from datetime import UTC, datetime
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext

from telemetry.rules.clock_change import nearest_clock_times, occurs


class LocalTimeField(forms.DateTimeField):
    """A date and a time. Of two instants with the same clock time, the first counts.

    ``note`` says so, for the page. A clock time that does not exist is refused with the
    nearest ones.
    """

    note = ""

    def to_python(self, value: Any) -> datetime | None:
        """Return the instant.

        Raises:
            ValidationError: it is no date and time, or does not exist on the clock.
        """
        self.note = ""
        try:
            return super().to_python(value)
        except ValidationError as error:
            if error.code != "ambiguous_timezone":
                raise
            params = error.params or {}
            typed, zone = params["datetime"], params["current_timezone"]
        # In UTC, because Python finds an instant of this hour equal to no other zone's.
        found: datetime = typed.replace(tzinfo=zone, fold=0).astimezone(UTC)
        if not occurs(typed, zone):
            before, after = nearest_clock_times(typed, zone)
            raise ValidationError(
                gettext(
                    "The clock is put forward on this day, so %(typed)s does not "
                    "exist. Choose %(before)s or earlier, or %(after)s or later."
                )
                % {
                    "typed": f"{typed:%H:%M}",
                    "before": f"{before:%H:%M}",
                    "after": f"{after:%H:%M}",
                },
                code="missing",
            )
        self.note = gettext(
            "The clock is put back on %(day)s, so %(typed)s comes twice. The first one "
            "counts."
        ) % {"day": f"{typed:%Y-%m-%d}", "typed": f"{typed:%H:%M}"}
        return found


def clock_notes(form: forms.BaseForm) -> list[str]:
    """Return the notes about the clock times that were typed into a form."""
    notes = (getattr(field, "note", "") for field in form.fields.values())
    return list(dict.fromkeys(filter(None, notes)))

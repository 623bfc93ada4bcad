"""Values in addresses. An invalid one is ignored and named, never an error page."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django import forms
from django.utils import timezone
from django.utils.translation import gettext

from telemetry.models import Gpu
from telemetry.web.local_time_field import LocalTimeField
from telemetry.web.plain_forms import PlainForm
from telemetry.web.query_filters import read_filters

WALL = "%Y-%m-%dT%H:%M"
MOST_GPUS = 64


class GpuListField(forms.Field):
    """Gpu numbers separated by commas: "3,1,3" is [3, 1]."""

    def to_python(self, value: Any) -> list[int]:
        """Return the numbers, each once, in their order."""
        if not value:
            return []
        try:
            numbers = [int(part) for part in str(value).split(",") if part.strip()]
        except ValueError as error:
            raise forms.ValidationError(gettext("not a list of GPU numbers")) from error
        if len(numbers) > MOST_GPUS or any(n < 1 or n > 2**62 for n in numbers):
            raise forms.ValidationError(gettext("not a list of GPU numbers"))
        return list(dict.fromkeys(numbers))


class DraftForm(PlainForm):
    """A booking that was begun on another page (the plan, the board)."""

    gpu = forms.IntegerField(required=False, min_value=1, max_value=2**62)
    gpus = GpuListField(required=False)
    start = LocalTimeField(required=False)
    end = LocalTimeField(required=False)
    purpose = forms.CharField(required=False, max_length=120)
    plan = forms.IntegerField(required=False, min_value=1, max_value=2**62)

    def clean_start(self) -> datetime | None:
        """Return the start, if a calendar could ever show it."""
        return _plausible(self.cleaned_data["start"])

    def clean_end(self) -> datetime | None:
        """Return the end, if a calendar could ever show it."""
        return _plausible(self.cleaned_data["end"])


def _plausible(at: datetime | None) -> datetime | None:
    """Refuse years whose conversion between zones would overflow."""
    if at is not None and not 2000 <= at.year <= 2200:
        raise forms.ValidationError(gettext("the year is not between 2000 and 2200"))
    return at


def wall(at: datetime | None) -> str:
    """Return an instant on the site's clock, to the minute. None: ""."""
    return timezone.localtime(at).strftime(WALL) if at else ""


def read_draft(query: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the draft in an address (None: no draft), and the notices.

    Times are the site's clock ("2026-11-21T14:00"), as in the inputs.
    """
    asked = read_filters(DraftForm, query)
    values, notices = asked.values, list(asked.notices)
    wanted = list(values.get("gpus") or [])
    if values.get("gpu"):
        wanted = list(dict.fromkeys([values["gpu"], *wanted]))
    known = set(Gpu.objects.filter(pk__in=wanted).values_list("pk", flat=True))
    gone = [str(pk) for pk in wanted if pk not in known]
    if gone:
        notices.append(
            gettext("There is no GPU number %(gone)s.") % {"gone": ", ".join(gone)}
        )
    start, end = values.get("start"), values.get("end")
    if start and end and end <= start:
        notices.append(
            gettext(
                "The end in the page's address is not after the start and is ignored."
            )
        )
        end = None
    draft = {
        "gpu_ids": [pk for pk in wanted if pk in known],
        "start": wall(start),
        "end": wall(end),
        "purpose": values.get("purpose") or "",
        "plan": values.get("plan"),
    }
    return (draft if any(draft.values()) else None), notices

"""The values in the address of the waitlist's page."""

from datetime import datetime

from django import forms

from reservations.models import WaitingRequest
from reservations.web.forms import _plausible
from reservations.web.schemas import MOST_GPUS
from telemetry.protocol.sentences import sentence
from telemetry.web.local_time_field import LocalTimeField
from telemetry.web.plain_forms import PlainForm

OVER = [
    (state.value, state.label)
    for state in WaitingRequest.State
    if state != WaitingRequest.State.WAITING
]


class WaitForm(PlainForm):
    """A request that was begun on another page (the calendar, a refusal)."""

    count = forms.IntegerField(required=False, min_value=1, max_value=MOST_GPUS)
    hours = forms.FloatField(required=False, min_value=0.25, max_value=31 * 24)
    min_gib = forms.IntegerField(required=False, min_value=0, max_value=100_000)
    gpu_class = forms.CharField(required=False, max_length=80)
    earliest = LocalTimeField(required=False)
    latest = LocalTimeField(required=False)
    membership = forms.IntegerField(required=False, min_value=1, max_value=2**62)
    purpose = forms.CharField(required=False, max_length=120)
    state = forms.ChoiceField(
        required=False, choices=[("", sentence("Any end")), *OVER]
    )
    page = forms.IntegerField(required=False, min_value=1, max_value=10**6)

    def clean_earliest(self) -> datetime | None:
        """Return the start, if a calendar could ever show it."""
        return _plausible(self.cleaned_data["earliest"])

    def clean_latest(self) -> datetime | None:
        """Return the end, if a calendar could ever show it."""
        return _plausible(self.cleaned_data["latest"])

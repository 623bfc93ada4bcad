"""What the addresses of the series pages may say."""

from django import forms

from telemetry.web.plain_forms import PlainForm


class SeriesFilterForm(PlainForm):
    """Which Series, and which page."""

    state = forms.ChoiceField(
        required=False,
        choices=[(word, word) for word in ("", "all", "running", "ended")],
    )
    page = forms.IntegerField(required=False, min_value=1, max_value=10**6)

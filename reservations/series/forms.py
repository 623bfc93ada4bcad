"""Filters in the addresses of the series pages."""

from django import forms

from telemetry.web.plain_forms import PlainForm


class SeriesFilterForm(PlainForm):
    """A filter of Series, and the page."""

    state = forms.ChoiceField(
        required=False,
        choices=[(word, word) for word in ("", "all", "running", "ended")],
    )
    page = forms.IntegerField(required=False, min_value=1, max_value=10**6)

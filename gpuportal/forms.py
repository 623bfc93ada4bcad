"""Forms of the lobby."""

from django import forms

from reservations.models import ApiToken

SCOPE_WORDS = {
    "read": "read: see GPUs, the calendar and your own jobs",
    "book": "book: make, move and cancel your reservations",
    "job": "job: start and stop your jobs",
    "metrics": "metrics: read figures for monitoring",
}
LIFETIMES = ((7, "7 days"), (30, "30 days"), (90, "90 days"), (365, "1 year"))


class TokenForm(forms.Form):
    """What a new API token may do, and for how long."""

    label = forms.CharField(
        max_length=60,
        label="What it is for",
        widget=forms.TextInput(
            attrs={"class": "input", "placeholder": "nightly training script"}
        ),
    )
    scopes = forms.MultipleChoiceField(
        label="What it may do",
        choices=[(scope, SCOPE_WORDS[scope]) for scope in ApiToken.SCOPES],
        widget=forms.CheckboxSelectMultiple,
        initial=["read"],
        error_messages={"required": "Choose at least one thing that it may do."},
    )
    days = forms.TypedChoiceField(
        label="Valid for",
        choices=LIFETIMES,
        coerce=int,
        initial=90,
        widget=forms.Select(attrs={"class": "select"}),
    )

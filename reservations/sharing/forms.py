"""Forms for sharing, offering and giving back in part."""

from typing import Any

from django import forms
from django.utils.translation import gettext, gettext_lazy

from reservations.models import Offer
from reservations.rules.lifecycle import State
from telemetry.web.plain_forms import PlainForm

MOST_GPUS = 64


class ShareForm(PlainForm):
    """The person to share with."""

    user = forms.CharField(label=gettext_lazy("With whom"), max_length=150)


class OfferForm(PlainForm):
    """The recipient, or the Reservation to swap with."""

    to = forms.CharField(
        label=gettext_lazy("Give it to"), max_length=150, required=False
    )
    account = forms.SlugField(
        label=gettext_lazy("Their group"), max_length=63, required=False
    )
    wanted = forms.IntegerField(
        label=gettext_lazy("Swap for"), required=False, min_value=1, max_value=2**62
    )
    message = forms.CharField(
        label=gettext_lazy("Message"), max_length=200, required=False
    )

    def clean(self) -> dict[str, object]:
        """Require exactly one of both."""
        data = super().clean() or {}
        if not data.get("to") and not data.get("wanted") and not self.errors:
            self.add_error(
                "to",
                gettext(
                    "Enter who gets it, or choose the booking that you want for it."
                ),
            )
        return data


class GpuNumbersField(forms.MultipleChoiceField):
    """Several GPU numbers: one per box, or those of a whole node with commas. The
    service checks whether they are held."""

    def to_python(self, value: Any) -> list[Any]:
        """Return the ticked values, as numbers where they are numeric."""
        boxes = super().to_python(value)[:MOST_GPUS]
        texts = [text for box in boxes for text in box.split(",")][:MOST_GPUS]
        return [int(text) if _is_number(text) else text for text in texts]

    def valid_value(self, value: Any) -> bool:
        """Return whether it can be a GPU's number."""
        return isinstance(value, int)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


class GiveBackForm(PlainForm):
    """The GPUs to give back, and how much of the end."""

    gpus = GpuNumbersField(label="GPUs", required=False)
    hours = forms.FloatField(
        label=gettext_lazy("Hours"), required=False, min_value=0, max_value=31 * 24
    )
    version = forms.IntegerField(label="Version", min_value=1, max_value=2**31)

    def clean(self) -> dict[str, object]:
        """Require something to give back."""
        data = super().clean() or {}
        if not data.get("gpus") and not data.get("hours") and not self.errors:
            self.add_error(
                "hours",
                gettext("Enter how many hours, or choose which GPUs you return."),
            )
        return data


class OfferFilterForm(PlainForm):
    """A filter of Offers, and the page."""

    state = forms.ChoiceField(
        required=False,
        choices=[(word, word) for word in ("", "all", *Offer.State.values)],
    )
    page = forms.IntegerField(required=False, min_value=1, max_value=10**6)


class PastFilterForm(PlainForm):
    """A filter of past Reservations, and the page."""

    state = forms.ChoiceField(
        required=False,
        choices=[
            ("", ""),
            *((one.value, one.value) for one in State if one not in State.live()),
        ],
    )
    page = forms.IntegerField(required=False, min_value=1, max_value=10**6)

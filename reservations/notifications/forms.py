"""Forms of the pages about Notices: kinds, channels, and pauses."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.utils.translation import gettext, gettext_lazy

from reservations.models import Notice, NoticeSettings
from reservations.notifications.text.notice_forms import CHANNELS
from reservations.notifications.webhook_rules import LONGEST
from telemetry.protocol.sentences import sentence
from telemetry.web.plain_forms import PlainForm

MUTES = (
    ("0", sentence("not muted")),
    ("1", "1 h"),
    ("8", "8 h"),
    ("24", "1 day"),
    ("168", "1 week"),
)


class NoticeFilterForm(PlainForm):
    """The kinds of Notices to show, and the page."""

    kind = forms.ChoiceField(
        label=gettext_lazy("Kind"), required=False, choices=Notice.Kind.choices
    )
    unread = forms.BooleanField(required=False)
    page = forms.IntegerField(required=False, min_value=1, max_value=10**6)


class NoticeChoiceForm(PlainForm):
    """A box per kind and channel (fields named as channels), and quiet hours."""

    quiet_from = forms.TimeField(
        label=gettext_lazy("Quiet from"),
        required=False,
        widget=forms.TimeInput(attrs={"type": "time", "class": "input"}),
    )
    quiet_until = forms.TimeField(
        label=gettext_lazy("Quiet until"),
        required=False,
        widget=forms.TimeInput(attrs={"type": "time", "class": "input"}),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for channel in CHANNELS:
            self.fields[channel] = forms.MultipleChoiceField(
                required=False, choices=Notice.Kind.choices
            )

    def clean(self) -> dict[str, Any]:
        """Refuse quiet hours with only one end."""
        found: Mapping[str, Any] = super().clean() or self.cleaned_data
        begin, end = found.get("quiet_from"), found.get("quiet_until")
        if (begin is None) != (end is None) and not self.errors:
            missing = "quiet_from" if begin is None else "quiet_until"
            self.add_error(missing, gettext("Enter both times, or leave both empty."))
        if begin is not None and begin == end:
            self.add_error(
                "quiet_until",
                gettext("The quiet hours must end at another time than they begin."),
            )
        return dict(found)

    def chosen(self) -> dict[str, list[str]]:
        """Return {kind: channels} of the boxes that are ticked."""
        ticked = {
            channel: set(self.data.getlist(channel))  # type: ignore[attr-defined]
            for channel in CHANNELS
        }
        return {
            kind: [channel for channel in CHANNELS if kind in ticked[channel]]
            for kind in Notice.Kind.values
        }


class MuteForm(PlainForm):
    """For how long only the page notifies."""

    hours = forms.ChoiceField(label=gettext_lazy("Hours"), choices=MUTES)

    def until(self, now: datetime) -> datetime | None:
        """Return the instant; None: not muted."""
        hours = int(self.cleaned_data["hours"])
        return now + timedelta(hours=hours) if hours else None


class WebhookForm(PlainForm):
    """The address to call, checked by ``notifications/webhook_rules.py``, and its
    format.
    """

    format = forms.ChoiceField(
        label=gettext_lazy("Format"),
        choices=NoticeSettings.Format.choices,
        initial=NoticeSettings.Format.PORTAL,
        required=False,
        widget=forms.Select(attrs={"class": "select"}),
    )
    url = forms.CharField(
        label=gettext_lazy("Url"),
        max_length=LONGEST,
        strip=True,
        widget=forms.TextInput(
            attrs={
                "class": "input",
                "type": "url",
                "placeholder": "https://hooks.example.org/gpu",
                "autocomplete": "off",
            }
        ),
    )

    def clean_format(self) -> str:
        """Return the format. An older page sends none."""
        return self.cleaned_data["format"] or NoticeSettings.Format.PORTAL

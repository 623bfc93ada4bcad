"""Forms of the tree's pages: new Accounts, new members, tables from files, reasons."""

from typing import Any

from django import forms
from django.contrib.auth.forms import UsernameField
from django.core.exceptions import ValidationError
from django.core.files.uploadedfile import UploadedFile
from django.core.validators import RegexValidator, validate_slug
from django.utils.translation import gettext_lazy

from reservations.accounts.csv_table import MOST_BYTES, SheetInvalid, decoded
from reservations.accounts.tree.form_rows import read_day
from reservations.accounts.tree.tree_edits import LOGIN, MOST_SHARES
from reservations.web.credit_field import HoursField, Unreadable
from telemetry.protocol.sentences import sentence
from telemetry.web.error_answers import message_of
from telemetry.web.plain_forms import PlainForm

login_valid = RegexValidator(
    rf"^{LOGIN.pattern}\Z", sentence("Letters, digits and @ . + - _ only.")
)


class LastDayField(forms.CharField):
    """A day, read as the instant at which it ends in the site's zone."""

    widget = forms.DateInput(attrs={"type": "date"})

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=10, **kwargs)

    def clean(self, value: Any) -> Any:
        """Return the instant.

        Raises:
            ValidationError: it is not a day.
        """
        try:
            return read_day(super().clean(value) or "")
        except Unreadable as error:
            raise ValidationError(str(error)) from error


class AccountForm(PlainForm):
    """A new Account below the one that is shown."""

    name = forms.CharField(
        label=gettext_lazy("Name"), max_length=63, validators=[validate_slug]
    )
    title = forms.CharField(label=gettext_lazy("Title"), max_length=120, required=False)
    shares = forms.IntegerField(
        label=gettext_lazy("Shares"), min_value=0, max_value=MOST_SHARES, initial=1
    )
    quota_gpu_seconds = HoursField(label=gettext_lazy("Quota, credits in any 7 days"))


class MemberForm(PlainForm):
    """A new member. With a sponsor and a last day it is a guest."""

    user = UsernameField(
        max_length=150, label=gettext_lazy("User name"), validators=[login_valid]
    )
    name = forms.CharField(
        max_length=80,
        required=False,
        label=gettext_lazy("Name (new person)"),
    )
    mail = forms.EmailField(required=False, label=gettext_lazy("Mail (new person)"))
    shares = forms.IntegerField(
        label=gettext_lazy("Shares"), min_value=0, max_value=MOST_SHARES, initial=1
    )
    quota_gpu_seconds = HoursField(label=gettext_lazy("Quota, credits in any 7 days"))
    is_head = forms.BooleanField(
        required=False, label=gettext_lazy("Head of this group")
    )
    sponsor = forms.CharField(
        max_length=150,
        required=False,
        label=gettext_lazy("Guest of (user name of a member)"),
    )
    expires_at = LastDayField(required=False, label=gettext_lazy("Last day"))

    def clean_sponsor(self) -> str | None:
        """Return the login, or None."""
        return self.cleaned_data["sponsor"] or None


REASON_LENGTH = 100


class ReasonForm(PlainForm):
    """The reason, stored in the history and the audit log."""

    reason = forms.CharField(label=gettext_lazy("Reason"), max_length=REASON_LENGTH)


class SheetForm(PlainForm):
    """A table from a file, or the text of a file that was previewed before."""

    file = forms.FileField(
        label=gettext_lazy("File"), required=False, allow_empty_file=True
    )
    text = forms.CharField(required=False, strip=False)

    def clean(self) -> dict[str, Any]:
        """Read the file into ``text``; a new file replaces the earlier text.

        Raises:
            ValidationError: on the file, if there is none or it cannot be read.
        """
        values = super().clean() or {}
        file: UploadedFile | None = values.get("file")
        try:
            if file is not None:
                # One byte more than allowed is enough to refuse a larger file.
                values["text"] = decoded(file.read(MOST_BYTES + 1))
            elif not values.get("text"):
                raise SheetInvalid(why=sentence("no file was chosen"))
        except SheetInvalid as error:
            values["text"] = ""
            self.add_error("file", message_of(error))
        return values

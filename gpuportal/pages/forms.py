"""Forms of pages that belong to no app."""

from django import forms
from django.conf import settings
from django.contrib.auth.forms import AuthenticationForm
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_lazy as lazy

from gpuportal.directory.directory_backend import REFUSAL
from gpuportal.directory.forms import counted_name, refusal_errors
from reservations.accounts.identities.queries import directory
from reservations.accounts.identities.rules import SignInRefused
from reservations.accounts.ssh_keys.public_key import MOST_CHARACTERS
from reservations.accounts.ssh_keys.service import MOST_NAME_CHARACTERS
from reservations.models import ApiToken
from reservations.notifications.reader_locale import zone_names
from telemetry.web.plain_forms import PlainErrors, PlainForm

SCOPE_WORDS = {
    "read": lazy("read: see GPUs, the calendar and your own jobs"),
    "book": lazy("book: make, move and cancel your reservations"),
    "job": lazy("job: start and stop your jobs"),
    "serve": lazy("serve: call your served models"),
    "metrics": lazy("metrics: read figures for monitoring"),
}
LIFETIMES = (
    (7, lazy("7 days")),
    (30, lazy("30 days")),
    (90, lazy("90 days")),
    (365, lazy("1 year")),
)


class TokenForm(PlainForm):
    """The scopes and the lifetime of a new API token."""

    label = forms.CharField(
        max_length=60,
        label=lazy("What it is for"),
        widget=forms.TextInput(
            attrs={"class": "input", "placeholder": lazy("nightly training script")}
        ),
    )
    scopes = forms.MultipleChoiceField(
        label=lazy("Permissions"),
        choices=[(scope, SCOPE_WORDS[scope]) for scope in ApiToken.SCOPES],
        widget=forms.CheckboxSelectMultiple,
        initial=["read"],
        error_messages={"required": lazy("Choose at least one permission.")},
    )
    serve_job = forms.IntegerField(
        label=lazy("Only the models served by job"),
        required=False,
        min_value=1,
        max_value=10**17,
        help_text=lazy("Job number, or empty for all of yours."),
        widget=forms.NumberInput(attrs={"class": "input"}),
    )
    days = forms.TypedChoiceField(
        label=lazy("Valid for"),
        choices=LIFETIMES,
        coerce=int,
        initial=90,
        widget=forms.Select(attrs={"class": "select"}),
    )

    def clean(self) -> dict[str, object]:
        """Narrow the scope `serve` to one Job if one is named."""
        data = super().clean() or self.cleaned_data
        job, scopes = data.get("serve_job"), data.get("scopes")
        if job and isinstance(scopes, list):
            if "serve" not in scopes:
                self.add_error(
                    "serve_job", gettext("This is for the permission “serve” only.")
                )
            data["scopes"] = [
                f"serve:{job}" if scope == "serve" else scope for scope in scopes
            ]
        return data


class SshKeyForm(PlainForm):
    """An ssh public key, pasted or as a file. The service reads it."""

    name = forms.CharField(
        max_length=MOST_NAME_CHARACTERS,
        required=False,
        label=lazy("Name"),
        widget=forms.TextInput(
            attrs={"class": "input", "placeholder": lazy("laptop"), "id": "id_key_name"}
        ),
    )
    public_key = forms.CharField(
        max_length=MOST_CHARACTERS,
        required=False,
        label=lazy("Public key"),
        widget=forms.Textarea(
            attrs={
                "class": "input mono",
                "rows": 3,
                "placeholder": "ssh-ed25519 AAAA…",
                "spellcheck": "false",
                "autocomplete": "off",
            }
        ),
    )
    key_file = forms.FileField(
        required=False,
        allow_empty_file=True,
        label=lazy("or the file that ends in .pub"),
        widget=forms.FileInput(attrs={"class": "input", "accept": ".pub"}),
    )

    def clean(self) -> dict[str, object]:
        """Take the file's text if nothing was pasted."""
        data = super().clean() or self.cleaned_data
        sent = data.get("key_file")
        if sent is not None and not data.get("public_key"):
            raw = sent.read(MOST_CHARACTERS + 1)
            data["public_key"] = raw.decode("ascii", errors="replace")
        return data


class SignInForm(PlainErrors, AuthenticationForm):
    """User name and password, with the portal's sentence for a wrong one."""

    error_messages = {
        "invalid_login": lazy("Wrong user name or password."),
        "inactive": lazy("This account is switched off. Contact the lab admin."),
    }

    def clean_username(self) -> str:
        """Return one name for all ways to write it that a directory takes for one.

        So failures are counted together.
        """
        typed: str = self.cleaned_data["username"]
        return typed if directory() is None else counted_name(typed)

    def clean(self) -> dict[str, object]:
        """Show why a directory signed nobody in."""
        try:
            return super().clean() or self.cleaned_data
        except SignInRefused as refusal:
            raise refusal_errors(refusal) from refusal

    def get_invalid_login_error(self) -> forms.ValidationError:
        """Show the refusal of the directory if there is one."""
        refusal = getattr(self.request, REFUSAL, None)
        if refusal is None:
            return super().get_invalid_login_error()
        return refusal_errors(refusal)


class ZoneForm(PlainForm):
    """The zone in which a User reads times."""

    time_zone = forms.CharField(label=lazy("Time zone"), max_length=64, required=False)
    back = forms.CharField(required=False, max_length=400)
    """The page to go back to."""

    def clean_time_zone(self) -> str:
        """Take a zone by its IANA name; empty: the site's."""
        name = self.cleaned_data["time_zone"].strip()
        if name and name not in zone_names():
            raise forms.ValidationError(
                gettext("Choose a time zone from the list, for example Europe/Berlin.")
            )
        return name


class LanguageForm(PlainForm):
    """The language in which a person reads pages and mails."""

    language = forms.CharField(max_length=16, required=False)

    def clean_language(self) -> str:
        """Take a language by its code; empty: the browser's."""
        code = self.cleaned_data["language"]
        if code and code not in dict(settings.LANGUAGES):
            raise forms.ValidationError(_("Choose a language from the list."))
        return code

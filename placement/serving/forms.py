"""Forms to serve a model, and to filter the list of endpoints."""

from collections.abc import Sequence
from typing import Any

from django import forms
from django.core.files.uploadedfile import UploadedFile
from django.http import QueryDict
from django.utils.translation import gettext_lazy

from placement.jobs.number_fields import number, whole_number_field
from placement.models import Admits
from placement.protocol.serving_frames import MODEL_NAME, NAME_RULE
from telemetry.protocol.sentences import sentence
from telemetry.web.plain_forms import PlainForm

Choices = Sequence[tuple[str, str]]
RESERVATION, BOOK, ENDPOINT = "r", "book", "e"
"""How a place is written: r:<reservation>, book, e:<job>."""
RESULT = "result:"
"""How a file is written: result:<number> of a Job, or the number of a stored one."""

ADMITS = (
    (Admits.OWNER, gettext_lazy("only I")),
    (Admits.ACCOUNT, gettext_lazy("members of the group that pays")),
    (Admits.ANYBODY, gettext_lazy("everyone")),
)
"""Whose models an endpoint accepts, as its owner chooses."""


class EndpointFilterForm(PlainForm):
    """Which endpoints a list shows."""

    q = forms.CharField(required=False, max_length=120)
    state = forms.ChoiceField(
        required=False,
        choices=[
            ("", gettext_lazy("any state")),
            ("live", gettext_lazy("live")),
            ("over", gettext_lazy("over")),
        ],
    )


class _SeveralInput(forms.ClearableFileInput):
    allow_multiple_selected = True


class SeveralFiles(forms.FileField):
    """A field of one or more files. Its value is their list."""

    widget = _SeveralInput

    def clean(self, data: Any, initial: Any = None) -> list[UploadedFile]:
        """Check each file."""
        given = data if isinstance(data, list | tuple) else [data]
        cleaned = [super(SeveralFiles, self).clean(one, initial) for one in given]
        return [one for one in cleaned if one]


class ServeForm(PlainForm):
    """A model, its place, and its settings."""

    upload = SeveralFiles(required=False, allow_empty_file=True)
    file = forms.ChoiceField(required=False)
    name = forms.CharField(required=False, max_length=63)
    place = forms.ChoiceField()
    hours = number(0.25, 336, unit=sentence("hours"), required=False, initial=2)
    membership = forms.TypedChoiceField(required=False, coerce=int, empty_value=None)
    most_batch = whole_number_field(1, 256, initial=8)
    deadline_ms = whole_number_field(1, 600_000, initial=10_000)
    admits = forms.ChoiceField(choices=ADMITS, initial=Admits.OWNER)
    may_move = forms.BooleanField(required=False, initial=True)

    def __init__(
        self,
        *args: object,
        files: Choices,
        places: Choices,
        memberships: Choices,
        **kwargs: object,
    ) -> None:
        """Set the choices."""
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.arrived = ""
        for name, choices in (
            ("file", [("", gettext_lazy("the uploaded file")), *files]),
            ("place", list(places)),
            ("membership", list(memberships)),
        ):
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)
            field.choices = choices

    def choose(self, number: int, name: str) -> None:
        """Choose a stored file, so that it is not uploaded again."""
        field = self.fields["file"]
        assert isinstance(field, forms.ChoiceField)
        choices = dict(field.choices) | {str(number): name}  # type: ignore[arg-type]
        field.choices = list(choices.items())
        typed = QueryDict(mutable=True)
        typed.update(self.data)
        typed["file"] = self.cleaned_data["file"] = str(number)
        self.data = typed
        self.arrived = name

    def clean_name(self) -> str:
        """Return a name that the protocol allows. Empty: from the file's name."""
        name = str(self.cleaned_data["name"]).strip()
        if name and not MODEL_NAME.fullmatch(name):
            raise forms.ValidationError(NAME_RULE)
        return name

    def clean(self) -> dict[str, object]:
        """Require a file, and hours if a booking is made."""
        data = super().clean() or self.cleaned_data
        if not data.get("file") and not data.get("upload") and not self.errors:
            self.add_error("upload", gettext_lazy("Choose an ONNX model."))
        unsaid = "hours" not in self.errors and not data.get("hours")
        if data.get("place") == BOOK and unsaid:
            self.add_error(
                "hours", gettext_lazy("Enter for how many hours the GPU is booked.")
            )
        return data

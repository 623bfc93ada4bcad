"""The form that serves a language model. The service checks the values."""

from collections.abc import Sequence

from django import forms
from django.utils.translation import gettext_lazy

from placement.jobs.number_fields import number, whole_number_field
from placement.models import Admits
from placement.planner.launch.language_model_servers import AUTO, DTYPES, TEXT_SERVERS
from placement.protocol.launchers import MOST_FOLDER_CHARACTERS
from telemetry.protocol.sentences import sentence
from telemetry.web.plain_forms import PlainForm

Choices = Sequence[tuple[str, str]]
BOOK, RESERVATION = "book", "r"
"""How a place is written: book, or r:<reservation>."""
CALLERS = (
    (Admits.OWNER, gettext_lazy("only I")),
    (Admits.ACCOUNT, gettext_lazy("members of the group that pays")),
    (Admits.ANYBODY, gettext_lazy("everyone")),
)
"""The callers that an owner can allow."""
STORED = "stored:"
"""How an estimated model is written: stored:<number>, or a well-known name."""


class LanguageModelForm(PlainForm):
    """A language model, its place, and its settings."""

    model = forms.CharField(required=False, max_length=300)
    of_job = forms.TypedChoiceField(required=False, coerce=int, empty_value=None)
    name = forms.CharField(required=False, max_length=63)
    well_known = forms.ChoiceField(required=False)
    context_tokens = whole_number_field(16, 2**22, initial=4096)
    sequences = whole_number_field(1, 1024, initial=8)
    precision = forms.ChoiceField(
        required=False,
        choices=[("", gettext_lazy("automatic"))] + [(one, one) for one in DTYPES],
    )
    place = forms.ChoiceField()
    hours = number(0.25, 336, unit=sentence("hours"), required=False, initial=2)
    membership = forms.TypedChoiceField(required=False, coerce=int, empty_value=None)
    server = forms.ChoiceField(
        choices=[
            (AUTO, gettext_lazy("what the environment has")),
            *((one, one) for one in TEXT_SERVERS),
        ]
    )
    environment_folder = forms.CharField(
        required=False, max_length=MOST_FOLDER_CHARACTERS
    )
    callers = forms.ChoiceField(choices=CALLERS, initial=Admits.OWNER)

    def __init__(
        self,
        *args: object,
        jobs: Choices,
        known: Choices,
        places: Choices,
        memberships: Choices,
        **kwargs: object,
    ) -> None:
        """Set the choices."""
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        for name, choices in (
            ("of_job", [("", gettext_lazy("none")), *jobs]),
            ("well_known", [("", gettext_lazy("by the model’s name")), *known]),
            ("place", list(places)),
            ("membership", list(memberships)),
        ):
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)
            field.choices = choices

    def clean(self) -> dict[str, object]:
        """Require hours if a booking is made."""
        data = super().clean() or self.cleaned_data
        unsaid = "hours" not in self.errors and not data.get("hours")
        if data.get("place") == BOOK and unsaid:
            self.add_error(
                "hours", gettext_lazy("Enter for how many hours the GPU is booked.")
            )
        return data

"""The fields of the launch form for a Job in gaps."""

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy

from placement.jobs.number_fields import number
from telemetry.protocol.sentences import sentence
from telemetry.web.plain_forms import PlainForm

GAPS = "gaps"
MUCH = 100_000
FIELD_OF = {
    "shortest_minutes": "gap_minutes",
    "total_hours": "gap_hours",
    "min_memory_gib": "gap_memory_gib",
    "gpu_class": "gap_class",
    "membership": "gap_membership",
    "gpus": "gpu_count",
}
"""Field of this form by the field of the request."""


class GapFields(PlainForm):
    """The place of a Job. For gaps: duration, requirements and the paying
    membership.
    """

    where = forms.ChoiceField(
        required=False,
        choices=[
            ("", gettext_lazy("In your reservation")),
            (GAPS, gettext_lazy("Whenever GPUs are unbooked")),
        ],
    )
    gap_minutes = number(
        1, MUCH, unit=sentence("minutes"), open_end=True, required=False
    )
    gap_hours = number(
        0.01, MUCH, unit=sentence("hours"), open_end=True, required=False
    )
    gap_memory_gib = number(0, MUCH, unit="GiB", open_end=True, required=False)
    gap_class = forms.ChoiceField(required=False)
    gap_membership = forms.TypedChoiceField(
        required=False, coerce=int, empty_value=None
    )

    def offer_gaps(
        self, classes: Sequence[str], payers: Sequence[tuple[int, str]]
    ) -> None:
        """Set the choices: classes of Gpus, and the membership that pays."""
        kind, payer = self.fields["gap_class"], self.fields["gap_membership"]
        assert isinstance(kind, forms.ChoiceField)
        assert isinstance(payer, forms.ChoiceField)
        kind.choices = [("", gettext_lazy("any")), *((name, name) for name in classes)]
        payer.choices = (
            list(payers) if len(payers) > 1 else [("", gettext_lazy("the only one"))]
        )

    def check_where(self, data: Mapping[str, Any]) -> None:
        """Require a reservation, or refuse fields that gaps do not support."""
        if data.get("where") != GAPS:
            if data.get("reservation") is None and "reservation" not in self.errors:
                self.add_error("reservation", gettext_lazy("Choose a reservation."))
            return
        if data.get("sweep"):
            self.add_error("sweep", gettext_lazy("A sweep needs a reservation."))
        if data.get("resume_from"):
            self.add_error(
                "resume_from",
                gettext_lazy("A job without a reservation starts from the beginning."),
            )
        if data.get("after"):
            self.add_error(
                "after",
                gettext_lazy("A job without a reservation cannot wait for another."),
            )
        if data.get("retry_failed"):
            self.add_error(
                "retry_failed",
                gettext_lazy(
                    "A job without a reservation restarts only if its node fails."
                ),
            )
        if data.get("may_move") or data.get("restart"):
            self.add_error(
                None,
                gettext_lazy(
                    "A job without a reservation moves automatically. This cannot "
                    "be set."
                ),
            )

    def gap_wish(self) -> dict[str, Any]:
        """Return the service's arguments about gaps."""
        data = self.cleaned_data
        return {
            "shortest_minutes": data["gap_minutes"] or 30,
            "total_hours": data["gap_hours"],
            "min_memory_gib": data["gap_memory_gib"] or 0,
            "gpu_class": data["gap_class"],
        }

"""A refusal by the rules of booking in a form: why, and the next slot that works."""

from django import forms
from django.utils import timezone

from reservations.rules.calendar import Slot
from reservations.rules.errors import Refusal
from reservations.rules.figures import time_text
from telemetry.models import Gpu
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import known, sentence
from telemetry.web.error_answers import add_errors
from telemetry.web.translation import translated


def add_refusal(form: forms.BaseForm, error: CodedError) -> int:
    """Show an error in a form, and the next slot that works. Return the HTTP status.

    Raises:
        CodedError: the same error, if it is a fault of the portal.
    """
    status = add_errors(form, error)
    if isinstance(error, Refusal) and error.next_slot is not None:
        form.add_error(None, translated(slot_text(error.next_slot)))
    return status


def slot_text(slot: Slot) -> str:
    """Return where and when a slot is, in the reader's time zone."""
    zone = timezone.get_current_timezone()
    rows = Gpu.objects.select_related("node").filter(pk__in=slot.gpu_ids)
    return sentence(
        "This works: {gpus} from {start} to {end}, {kind}.",
        gpus=", ".join(map(str, rows.order_by("node__name", "index"))),
        start=time_text(slot.start, zone),
        end=time_text(slot.end, zone),
        kind=known(slot.kind.value),
    )

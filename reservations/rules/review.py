"""The review of a change before it is saved: its mark, and its errors. Pure.

The page of ``reservations.web.review_page`` shows the effects of a change and sends
their mark with the button that saves. The service that saves computes the mark again.
Another mark means that something changed in between, and nothing is saved.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, tzinfo
from http import HTTPStatus

from telemetry.protocol.coded_error import CodedError, FieldsRefused
from telemetry.protocol.sentences import sentence

MARK_LENGTH = 32


def mark_of(facts: object) -> str:
    """Return a mark of what a review shows: other facts have another mark.

    Args:
        facts: what JSON can hold.

    >>> mark_of({"weight": [1, 2]}) == mark_of({"weight": (1, 2)})
    True
    """
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:MARK_LENGTH]


class FieldsInvalid(FieldsRefused):
    """A change that is incomplete or impossible, by field.

    The field "" stands for several fields.
    """

    code = "fields-invalid"
    title = sentence("This is not complete")


@dataclass(eq=False)
class PreviewStale(CodedError):
    """Bookings changed after the preview was shown."""

    code = "preview-stale"
    title = sentence("Changed meanwhile")
    status = HTTPStatus.CONFLICT
    why: str = sentence("Bookings changed since this was shown. Check the list again.")

    def text(self, zone: tzinfo = UTC) -> str:
        return self.why

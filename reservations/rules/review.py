"""A change is reviewed before it is saved: its mark, and why it is not saved. Pure.

The page of ``reservations.web.review_page`` shows what a change does and sends the mark
of it with the button that saves. The service that saves makes the mark again. Another
mark means that something changed in between, and nothing is saved.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import ClassVar

from reservations.rules.errors import BookingError
from telemetry.protocol.sentences import joined, sentence

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


@dataclass(eq=False)
class FieldsInvalid(BookingError):
    """A change that is not complete or not possible; says why by field."""

    code: ClassVar[str] = "fields-invalid"
    title: ClassVar[str] = sentence("This is not complete")
    wrong: Mapping[str, str]
    """Sentences by field; "": about several."""

    def text(self, zone: tzinfo = UTC) -> str:
        return joined(self.wrong.values())


@dataclass(eq=False)
class PreviewStale(BookingError):
    """What a change does is different from what the review showed."""

    code: ClassVar[str] = "preview-stale"
    title: ClassVar[str] = sentence("Changed meanwhile")
    why: str = sentence("Bookings changed since this was shown. Check the list again.")

    def text(self, zone: tzinfo = UTC) -> str:
        return self.why

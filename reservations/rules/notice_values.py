"""The values for a Notice's text: stored numbers, and names that the reader may see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any

from reservations.rules.figures import credits_text, time_text
from telemetry.protocol.sentences import sentence


@dataclass(frozen=True, slots=True)
class NoticeValues:
    """One Notice as its reader may see it.

    Attributes:
        detail: the values stored when it was created.
        gpus: the Gpus of its Reservation. "": none.
        who: the other person as the reader may see them: "Bo (vision)", or only
            "vision". "": none.
    """

    detail: Mapping[str, Any]
    zone: tzinfo
    start: datetime | None = None
    end: datetime | None = None
    gpus: str = ""
    who: str = ""

    @property
    def booking(self) -> str:
        """Return "booking Tue 3 Mar 09:00 on node-a:0", or "booking"."""
        if self.start and self.gpus:
            return sentence(
                "booking {start} on {gpus}",
                start=time_text(self.start, self.zone),
                gpus=self.gpus,
            )
        if self.start:
            return sentence("booking {start}", start=time_text(self.start, self.zone))
        if self.gpus:
            return sentence("booking on {gpus}", gpus=self.gpus)
        return sentence("booking")

    def time(self, name: str) -> str:
        """Return an instant stored as ISO 8601, for a sentence.

        Raises:
            KeyError, ValueError: it is missing, or not an instant.
        """
        return time_text(datetime.fromisoformat(self.detail[name]), self.zone)

    def clock(self, name: str) -> str:
        """Return only hours and minutes of an instant: "15:10"."""
        at = datetime.fromisoformat(self.detail[name])
        return f"{at.astimezone(self.zone):%H:%M}"

    def hours(self, name: str) -> str:
        """Return stored GPU-seconds as "12 credits". "": none."""
        found = self.detail.get(name)
        return credits_text(int(found)) if found else ""


Words = Callable[[NoticeValues], str]

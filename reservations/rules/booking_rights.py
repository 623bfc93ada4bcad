"""The end of the right to book under an Account, for guests and courses."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import ClassVar

from reservations.rules.errors import Refusal
from reservations.rules.figures import time_text
from reservations.rules.window import Window
from telemetry.protocol.sentences import sentence


@dataclass(eq=False)
class RightEnds(Refusal):
    """The booking lasts longer than the right to book."""

    code = "right-ends"
    title = sentence("Past the end of your time here")
    on_any_gpus: ClassVar[bool] = True
    account: str
    until: datetime

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence(
            "You can book with {account} until {until}. This booking would end later.",
            account=self.account,
            until=time_text(self.until, zone),
        )


@dataclass(frozen=True, slots=True)
class Right:
    """A right to book that ends."""

    account: str
    until: datetime


def check_right(window: Window, right: Right) -> None:
    """Refuse a Window that ends after the right to book.

    Raises:
        RightEnds.
    """
    if window.end > right.until:
        raise RightEnds(account=right.account, until=right.until)

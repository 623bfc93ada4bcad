"""Predict the release of a running Reservation that is not used.

See docs/design/fair-booking.md#rule-6.

Time without telemetry stops the clock, so a release may come later than predicted,
never earlier.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, TypedDict

from reservations.rules.policy import Policy
from telemetry.protocol.sentences import sentence


class ReleaseWarning(TypedDict):
    """A coming release of a reservation that nobody uses."""

    kind: str
    """no_show or idle."""
    release_at: str
    """ISO 8601 in UTC."""
    text: str
    unless: str
    """The action that prevents it."""
    keep: bool
    """Whether Keep may still be pressed. It works once."""


@dataclass(frozen=True, slots=True)
class PendingRelease:
    """The coming release, and the action that would prevent it."""

    kind: Literal["no_show", "idle"]
    release_at: datetime
    idle_seconds: int
    """How long it has been idle. 0: the holder has not come yet."""
    keep: bool
    """Whether Keep may still be pressed. It works once."""

    @property
    def text(self) -> str:
        """Return the text without the instant, which a page formats for its reader.

        >>> PendingRelease("idle", datetime(2026, 3, 2), 1500, keep=True).text
        'Idle for 25 min'
        """
        if self.kind == "no_show":
            return sentence("Not started yet")
        return sentence("Idle for {minutes} min", minutes=self.idle_seconds // 60)

    @property
    def unless(self) -> str:
        """Return the action that prevents it."""
        if self.kind == "no_show":
            return sentence("unless a job starts or you press “I’m here”")
        if self.keep:
            return sentence("unless work starts or you press “Keep (once)”")
        return sentence("unless work starts")

    def to_json(self) -> ReleaseWarning:
        """Return it as the board and the API send it."""
        return {
            "kind": self.kind,
            "release_at": self.release_at.isoformat().replace("+00:00", "Z"),
            "text": self.text,
            "unless": self.unless,
            "keep": self.keep,
        }


def next_release(
    *,
    start: datetime,
    checked_in_at: datetime | None,
    blind_seconds: int,
    idle_warned_at: datetime | None,
    keep_used: bool,
    now: datetime,
    policy: Policy,
) -> PendingRelease | None:
    """Return the coming release of a running Reservation, or None."""
    if checked_in_at is None:
        if not policy.release_no_shows:
            return None
        absent = timedelta(seconds=policy.no_show_seconds + blind_seconds)
        return PendingRelease(
            "no_show", max(start + absent, now), 0, keep=not keep_used
        )
    if idle_warned_at is None or not policy.release_idle:
        return None
    at = idle_warned_at + timedelta(seconds=policy.idle_grace_seconds)
    idle = policy.idle_seconds + int((now - idle_warned_at).total_seconds())
    return PendingRelease("idle", max(at, now), max(idle, 0), keep=not keep_used)

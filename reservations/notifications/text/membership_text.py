"""Texts about the end of a course or of a guest's time."""

from __future__ import annotations

from datetime import datetime, timedelta

from reservations.rules.notice_values import NoticeValues
from telemetry.protocol.sentences import sentence

WARN_DAYS = (7, 1)
"""How many days ahead people are warned, the earliest first."""


def warn_days(ends_at: datetime, now: datetime) -> int | None:
    """Return which of the warnings is due now. None: none yet, or it is over.

    If it was created with less time left, only the nearest warning is sent.
    """
    left = ends_at - now
    if left <= timedelta(0):
        return None
    due = [days for days in WARN_DAYS if left <= timedelta(days=days)]
    return min(due, default=None)


def ending_text(told: NoticeValues) -> str:
    """Say what ends and when, to a member, a guest, or a guest's sponsor."""
    detail = told.detail
    account = detail["account"]
    if detail["what"] == "cancelled":
        return sentence(
            "{account} has ended: your {booking} was cancelled free of charge.",
            account=account,
            booking=told.booking,
        )
    if detail["what"] == "released":
        return sentence(
            "{account} has ended: your {booking} ended now.",
            account=account,
            booking=told.booking,
        )
    when = told.time("ends_at")
    if detail["what"] == "guest":
        return sentence(
            "The time of {who} as a guest in {account} ends {when}. The "
            "lab admin can extend it.",
            who=told.who or sentence("your guest"),
            account=account,
            when=when,
        )
    return sentence(
        "Your membership in {account} ends {when}. Bookings and waiting "
        "requests end then, and running jobs are stopped. Save what you "
        "need before.",
        account=account,
        when=when,
    )

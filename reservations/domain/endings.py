"""What people are told when a course or a guest's time comes to its end."""

from __future__ import annotations

from datetime import datetime, timedelta

from reservations.domain.told import Told

WARN_DAYS = (7, 1)
"""How many days ahead people are told, the earliest first."""


def warn_days(ends_at: datetime, now: datetime) -> int | None:
    """Return which of the warnings is due now; None: none yet, or it is over.

    What is made with less time left is told of the nearest one only.
    """
    left = ends_at - now
    if left <= timedelta(0):
        return None
    due = [days for days in WARN_DAYS if left <= timedelta(days=days)]
    return min(due, default=None)


def ending_words(told: Told) -> str:
    """Say what ends and when, to a member, a guest, or who answers for a guest."""
    detail = told.detail
    account = detail["account"]
    if detail["what"] == "cancelled":
        return f"{account} has ended: your {told.booking} was cancelled free of charge."
    if detail["what"] == "released":
        return f"{account} has ended: your {told.booking} ended now."
    when = told.time("ends_at")
    if detail["what"] == "guest":
        return (
            f"The time of {told.who or 'your guest'} as a guest in {account} ends "
            f"{when}. The lab admin can extend it."
        )
    return (
        f"Your membership in {account} ends {when}. Bookings and waiting requests end "
        f"then, and running jobs are stopped. Save what you need before."
    )

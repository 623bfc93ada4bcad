"""Stored rows as frozen values: the only translator between models and domain."""

from reservations.snapshots.calendar import CalendarPage, calendar_entry, calendar_page
from reservations.snapshots.facts import (
    account_path,
    calendar_gpus,
    calendar_of,
    quota_infos,
    request_snapshot,
    site_policy,
)
from reservations.snapshots.holders import (
    HoldingInfo,
    current_holdings,
    next_holdings,
    recent_holdings,
)
from reservations.snapshots.usage import ranking, usage_by_membership

__all__ = [
    "CalendarPage",
    "HoldingInfo",
    "account_path",
    "calendar_entry",
    "calendar_gpus",
    "calendar_of",
    "calendar_page",
    "current_holdings",
    "next_holdings",
    "quota_infos",
    "ranking",
    "recent_holdings",
    "request_snapshot",
    "site_policy",
    "usage_by_membership",
]

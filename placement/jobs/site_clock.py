"""Instants on the site's clock, as text."""

from datetime import datetime

from django.utils import timezone

from reservations.rules.figures import time_text


def clock_text(at: datetime) -> str:
    """Return an instant on the site's clock, with its day if that is not today."""
    return clock_near(at, timezone.now())


def clock_near(at: datetime, near: datetime) -> str:
    """Return an instant on the site's clock, with its day if that differs."""
    zone = timezone.get_current_timezone()
    there, here = at.astimezone(zone), near.astimezone(zone)
    if there.date() == here.date():
        return f"{there:%H:%M}"
    return time_text(at, zone)

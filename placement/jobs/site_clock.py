"""Instants as the site's clock shows them."""

from datetime import datetime

from django.utils import timezone

from reservations.rules.figures import time_text


def clock_text(at: datetime) -> str:
    """Return an instant as the site's clock shows it; with its day if not today."""
    return clock_near(at, timezone.now())


def clock_near(at: datetime, near: datetime) -> str:
    """Return an instant as the site's clock shows it, with its day if another."""
    zone = timezone.get_current_timezone()
    there, here = at.astimezone(zone), near.astimezone(zone)
    if there.date() == here.date():
        return f"{there:%H:%M}"
    return time_text(at, zone)

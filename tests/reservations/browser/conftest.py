"""A clock for the tests of the calendar's pages."""

from datetime import timedelta

import pytest
from django.utils import timezone

ROOM = timedelta(minutes=5)
"""Longer than a test takes."""


@pytest.fixture(autouse=True)
def same_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no hour, and so no day, end during a test.

    Shortly before the end of an hour the portal's clock is moved into the next one.
    Pages take their time from the portal.
    """
    real = timezone.now
    now = real()
    end = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    if end - now < ROOM:
        shift = end - now + timedelta(seconds=17)
        monkeypatch.setattr(timezone, "now", lambda: real() + shift)

"""Instants and lengths of time: what people type, and what the portal reads."""

import argparse
from datetime import date, datetime, timezone

UTC = timezone.utc


def when(text):
    """Return an instant of the portal as this machine's local time."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone()


def span(row):
    """Return "Mon 12:00 to 20:00"."""
    start, end = when(row["start"]), when(row["end"])
    last = f"{end:%H:%M}" if end.date() == start.date() else f"{end:%a %H:%M}"
    return f"{start:%a %d %b %H:%M} to {last}"


def iso(at):
    """Return an instant as the portal reads it."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def local(text):
    """Return an instant typed as 2026-11-21T14:00, in local time if no zone is said."""
    try:
        return when(text)
    except ValueError:
        wrong = f"{text!r} is not a time, such as 2026-11-21T14:00"
        raise argparse.ArgumentTypeError(wrong) from None


def hours(text):
    """Return a length in hours: a number between -100,000 and 100,000."""
    value = float(text)
    if not -100_000 < value < 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of hours")
    return value


def clock(text):
    """Return an instant as "Mon 23 Nov 12:00", in local time; "" for None."""
    return f"{when(text):%a %d %b %H:%M}" if text else ""


def day(text):
    """Return a day typed as 2026-12-24."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        wrong = f"{text!r} is not a day, such as 2026-12-24"
        raise argparse.ArgumentTypeError(wrong) from None

"""Refusals state the facts in words."""

from datetime import UTC, datetime

from reservations.rules import errors


def test_five_minutes_too_long_are_seen() -> None:
    said = errors.TooLong(
        asked_seconds=86_700, longest_seconds=86_400, joined=False
    ).text()
    assert said == ("This booking would last a little more than 1 d, the limit.")


def test_a_time_between_two_steps_names_both() -> None:
    at = datetime(2026, 11, 23, 2, 52, tzinfo=UTC)

    def said(at: datetime, grid_seconds: int, edge: str = "end") -> str:
        return errors.OffGrid(
            edge=edge, at=at, grid_seconds=grid_seconds, nearest=at
        ).text()

    assert said(at, 300) == "Bookings end on full 5 minutes. Use 02:50 or 02:55."
    assert (
        said(at, 3600, "start") == "Bookings start on full hours. Use 02:00 or 03:00."
    )
    late = datetime(2026, 11, 23, 23, 52, tzinfo=UTC)
    assert said(late, 900) == (
        "Bookings end on full 15 minutes. Use Mon 23 Nov 23:45 or Tue 24 Nov 00:00."
    )

"""Refusals say what is so, in words."""

from datetime import UTC, datetime

from reservations.domain import errors


def test_an_end_before_its_start_is_not_called_the_past() -> None:
    begin = datetime(2126, 3, 2, 14, tzinfo=UTC)
    said = errors.InThePast(end=datetime(2126, 3, 2, 13, tzinfo=UTC), now=begin).text()
    assert said == "The end, Sat 2 Mar 13:00, is not after Sat 2 Mar 14:00."


def test_five_minutes_too_long_are_seen() -> None:
    said = errors.TooLong(
        asked_seconds=86_700, longest_seconds=86_400, joined=False
    ).text()
    assert said == (
        "This reservation would last a little more than 1 d, the longest here."
    )

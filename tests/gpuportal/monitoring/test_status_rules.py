"""What the status page says of each part: from facts alone."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpuportal.monitoring.status_rules import (
    DeliveryFacts,
    StatusFacts,
    headline,
    parts_of,
    worst,
)

pytestmark = pytest.mark.pure
NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


WELL = StatusFacts(
    now=NOW,
    database=True,
    upgrading=False,
    broker=True,
    done_at=(ago(1), ago(20)),
    late_since=(),
    stopped=False,
    some_late=False,
    frame_at=ago(1),
    nodes_seen_at=(ago(1), ago(2)),
    disk_short=False,
    mail=DeliveryFacts(),
    messages=DeliveryFacts(),
)
NAMES = [str(part.name) for part in parts_of(WELL)]


def shown(facts: StatusFacts) -> dict[str, tuple[str, datetime | None]]:
    """Return the state of each part that is not well."""
    return {
        str(part.name): (part.state.value, part.since)
        for part in parts_of(facts)
        if part.state != "good"
    }


def test_a_portal_that_works_says_so_in_every_line():
    assert shown(WELL) == {}
    assert str(headline(parts_of(WELL))) == "Everything works."
    assert len(NAMES) == len(set(NAMES)) == 9
    # A site without mail has no line for it.
    assert len(parts_of(replace(WELL, mail=None))) == 8


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (
            # The broker knows when a task last used the database.
            {
                "database": False,
                "nodes_seen_at": (),
                "late_since": (ago(60), ago(90)),
                "stopped": True,
                "some_late": True,
                "done_at": (ago(60), ago(90)),
            },
            {
                "Bookings and changes": ("bad", ago(60)),
                "Reservations and jobs": ("bad", ago(60)),
                "Nodes": ("unknown", None),
            },
        ),
        (
            # The database knows when the broker last brought something.
            {
                "broker": False,
                "done_at": (),
                "stopped": True,
                "frame_at": None,
                "nodes_seen_at": (ago(300), ago(310), None),
            },
            {
                "Connection to the nodes": ("bad", ago(300)),
                "Reservations and jobs": ("unknown", None),
                "Live data": ("unknown", None),
                "Nodes": ("unknown", None),
            },
        ),
        (
            {"some_late": True, "late_since": (ago(400), ago(500))},
            {"Reservations and jobs": ("warn", ago(500))},
        ),
        ({"frame_at": ago(9)}, {"Live data": ("warn", ago(9))}),
        (
            # Ingest is away: no node is blamed.
            {"frame_at": ago(40), "nodes_seen_at": (ago(40), ago(41))},
            {"Live data": ("bad", ago(40)), "Nodes": ("unknown", None)},
        ),
        (
            {"nodes_seen_at": (ago(1), ago(50), ago(70))},
            {"Nodes": ("warn", ago(70))},
        ),
        ({"nodes_seen_at": (None,)}, {"Nodes": ("bad", None)}),
        (
            {"frame_at": None, "nodes_seen_at": ()},
            {"Live data": ("unknown", None), "Nodes": ("unknown", None)},
        ),
        ({"disk_short": True}, {"Uploads and results": ("warn", None)}),
        ({"upgrading": True}, {"Pages": ("warn", None)}),
        (
            {"mail": DeliveryFacts(3, ago(900), ago(1000))},
            {"Mail": ("bad", ago(900))},
        ),
        (
            # One receiver is away, others get theirs.
            {"messages": DeliveryFacts(1, ago(900), ago(5))},
            {"Messages to chats and webhooks": ("warn", ago(900))},
        ),
    ],
)
def test_each_failure_is_shown_where_it_is_and_since_when(change, found):
    facts = replace(WELL, **change)
    assert shown(facts) == found
    parts = parts_of(facts)
    assert worst(parts) == max(
        (state for state, _ in found.values()), key=["unknown", "warn", "bad"].index
    )
    assert str(headline(parts)) != "Everything works."


def test_the_sentences_have_their_numbers():
    facts = replace(WELL, nodes_seen_at=(ago(1), ago(50), ago(70)))
    words = {str(part.name): str(part.words) for part in parts_of(facts)}
    assert words["Nodes"].startswith("2 of 3 nodes do not report.")
    facts = replace(WELL, database=False, broker=False, done_at=())
    assert str(headline(parts_of(facts))) == "2 parts of the portal do not work."
    facts = replace(WELL, frame_at=None, nodes_seen_at=())
    said = "No part of the portal fails. Some parts are not known yet."
    assert str(headline(parts_of(facts))) == said

"""Hot queries find their rows by an index, so that they stay flat as tables grow."""

import json
import re
from datetime import timedelta

from django.db import connection
from django.test.utils import CaptureQueriesContext

from reservations import tick
from reservations.booking.release import cancel
from reservations.booking.service import preview
from reservations.models import Account
from reservations.presence.holders import (
    current_holdings,
    next_holdings,
    recent_holdings,
)
from reservations.store.booking_facts import site_policy
from reservations.store.calendar_queries import Reader, calendar_page
from tests.reservations.conftest import HOUR, NOW, WEIGHT, at

GROWING = ("reservation", "allocation", "ledgerentry", "auditentry", "latereturn")


def plans(queries: list[dict[str, str]]) -> dict[str, str]:
    """Return the database's plan for every SELECT that was captured."""
    found = {}
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            # Small tables are scanned because it is cheaper, not because an index is
            # missing.
            cursor.execute("SET LOCAL enable_seqscan = off")
        for query in queries:
            sql = query["sql"]
            if sql.startswith("SELECT"):
                word = (
                    "EXPLAIN QUERY PLAN" if connection.vendor == "sqlite" else "EXPLAIN"
                )
                cursor.execute(f"{word} {sql}")
                found[sql] = "\n".join(str(row) for row in cursor.fetchall())
    return found


def assert_no_scan(queries: list[dict[str, str]], *, by_state: bool = False) -> None:
    """``by_state``: the states asked for are live ones, which are always few."""
    tables = "|".join(f"reservations_{name}" for name in GROWING)
    scan = re.compile(rf"(SCAN|Seq Scan on) ({tables})\b")
    seen = plans(queries)
    assert seen
    for sql, plan in seen.items():
        assert not scan.search(plan), f"{sql}\n{plan}"
        if connection.vendor == "sqlite" and not by_state:
            # By the state alone is by nearly everything that ever was.
            assert not re.search(r"\(state=\?\)", plan), f"{sql}\n{plan}"


def test_booking_searches_by_index(lab, alice, bob) -> None:
    Account.objects.filter(name="vision").update(quota_gpu_seconds=WEIGHT * 99 * HOUR)
    lab.book(bob, lab.gpus[:1], at(12), 2)
    with CaptureQueriesContext(connection) as seen:
        made = lab.book(alice, lab.gpus[1:2], at(12), 2)
        preview(
            user=alice,
            membership=None,
            gpu_ids=[lab.gpus[2].pk],
            start=at(12),
            end=at(13),
            now=NOW,
            ignoring=made.pk,
        )
        cancel(reservation_id=made.pk, user=alice, now=NOW)
    # Ranking reads the sum of all live ones, and all charges: see usage.py.
    own = [q for q in seen.captured_queries if "SUM(" not in q["sql"]]
    own = [q for q in own if "'charge'" not in q["sql"] and "MAX(" not in q["sql"]]
    assert_no_scan(own)


def test_reading_the_calendar_and_the_holders_searches_by_index(lab, alice) -> None:
    lab.book(alice, lab.gpus[:1], at(12), 2)
    policy = site_policy()
    with CaptureQueriesContext(connection) as seen:
        page = calendar_page(
            NOW,
            NOW + timedelta(days=7),
            reader=Reader.of(alice, policy),
            policy=policy,
            now=NOW,
        )
        current_holdings(NOW)
        recent_holdings(NOW, within_seconds=900)
        next_holdings(NOW)
    assert len(json.dumps(page.to_json())) > 100
    assert_no_scan(seen.captured_queries)


def test_a_tick_with_nothing_to_do_searches_by_index(lab, alice) -> None:
    lab.book(alice, lab.gpus[:1], at(12), 2)
    with CaptureQueriesContext(connection) as seen:
        tick.tick(NOW)
    # The policy once, then one short query for each kind of row that a step looks for:
    # every kind has an index of its own, which one query over all could not use.
    assert len(seen.captured_queries) == 17
    assert_no_scan(seen.captured_queries, by_state=True)

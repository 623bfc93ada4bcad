"""Pages of lists: complete, stable while rows are added, and no other cursor."""

import base64
import json
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from reservations.models import LedgerEntry, Notice, SshKey, WaitingRequest
from tests.factories import make_gpus, make_node
from tests.placement.lab import signed_in

pytestmark = pytest.mark.django_db
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


@pytest.fixture
def notices(alice):
    """Seven, of which three have the same time."""
    hours = [0, 1, 1, 1, 2, 3, 4]
    for hour in hours:
        Notice.objects.create(
            user=alice, kind=Notice.Kind.RELEASED, told_at=NOON + timedelta(hours=hour)
        )
    return signed_in(alice)


def read(client, **query):
    answer = client.get("/api/v1/notices", query)
    assert answer.status_code == 200, answer.json()
    told = answer.json()
    return [one["id"] for one in told["notices"]], told["next"], answer


@pytest.mark.once
def test_all_pages_together_are_the_list(notices):
    (whole, none, answer) = read(notices)
    assert len(whole) == 7 and none is None and "Link" not in answer
    for limit in (1, 2, 3, 6, 7):
        found, cursor = [], ""
        while cursor is not None:
            page, cursor, answer = read(notices, limit=limit, cursor=cursor)
            assert len(page) == limit or cursor is None
            found += page
        assert found == whole


def test_a_new_row_moves_no_other(notices, alice):
    whole, _, _ = read(notices)
    page, cursor, answer = read(notices, limit=3, unread=True)
    link = f'</api/v1/notices?limit=3&unread=True&cursor={cursor}>; rel="next"'
    assert answer["Link"] == link
    Notice.objects.create(
        user=alice, kind=Notice.Kind.RELEASED, told_at=NOON + timedelta(days=1)
    )
    following = notices.get(link[1:].partition(">")[0]).json()["notices"]
    assert [*page, *(one["id"] for one in following)] == whole[:6]


def test_a_cursor_shows_nothing_of_others(notices, bob):
    _, cursor, _ = read(notices, limit=1)
    assert read(signed_in(bob), cursor=cursor)[:2] == ([], None)


def encoded(value):
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


@pytest.mark.once
@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "é",
        "====",
        "\0",
        encoded(1),
        encoded(["2026-03-02T12:00:00+00:00"]),
        encoded(["2026-03-02T12:00:00", 1]),
        encoded(["0001-01-01T00:00:00+23:00", 1]),
        encoded(["2026-03-02T12:00:00+00:00", True]),
        encoded(["2026-03-02T12:00:00+00:00", 2**63]),
        encoded([1, 1]),
        "W" * 200,
        encoded(["a", "0", "u"]),
        encoded([]),
        "x" * 401,
    ],
)
@pytest.mark.parametrize("path", ["notices", "jobs", "gpus"])
def test_another_cursor_is_refused(alice, path, cursor):
    answer = signed_in(alice).get(f"/api/v1/{path}", {"cursor": cursor})
    assert answer.status_code in {400, 422}
    if answer.status_code == 422:
        assert answer.json()["fields"].keys() == {"cursor"}


def test_a_cursor_excludes_an_offset(notices, alice):
    cursor = encoded([timezone.now().isoformat(), 1])
    answer = signed_in(alice).get(f"/api/v1/plans?offset=3&cursor={cursor}")
    assert answer.status_code == 422
    assert answer.json()["fields"].keys() == {"offset"}


@pytest.mark.parametrize(
    "path",
    [
        *("jobs", "serve", "plans", "offers", "series", "tokens", "workspaces"),
        *("jobs/gaps", "serve/files", "waiting", "ssh-keys", "standing"),
    ],
)
def test_each_list_has_a_next(alice, path):
    answer = signed_in(alice).get(f"/api/v1/{path}", {"limit": 1})
    assert answer.json()["next"] is None
    cursor = encoded([timezone.now().isoformat(), 1])
    answer = signed_in(alice).get(f"/api/v1/{path}", {"cursor": cursor})
    assert answer.status_code == 200


def every_page(client, path, rows, **query):
    """Read a list page by page, with what it answers at once; both as lists."""
    whole = client.get(path, query).json()[rows]
    found, cursor = [], ""
    while cursor is not None:
        answer = client.get(path, {**query, "limit": 2, "cursor": cursor})
        assert answer.status_code == 200, answer.json()
        page, cursor = answer.json()[rows], answer.json()["next"]
        assert len(page) == 2 or cursor is None
        assert (cursor is not None) == ("Link" in answer)
        found += page
    return found, whole


def test_gpus_and_nodes_come_in_their_order_page_by_page(alice):
    for node in ("b", "a", "c"):
        make_gpus(3, make_node(node))
    client = signed_in(alice)
    found, whole = every_page(client, "/api/v1/gpus", "gpus")
    assert found == whole and len(whole) == 9
    assert [(one["node"], one["index"]) for one in whole] == sorted(
        (one["node"], one["index"]) for one in whole
    )
    found, whole = every_page(client, "/api/v1/nodes", "nodes")
    assert found == whole
    assert [one["name"] for one in whole] == ["a", "b", "c"]


def test_the_ledger_the_keys_and_the_waitlist_come_page_by_page(alice):
    membership = alice.memberships.get()
    for hour in range(5):
        at = NOON + timedelta(hours=hour // 2)
        LedgerEntry.objects.create(
            membership=membership,
            kind=LedgerEntry.Kind.IMPORT,
            source=f"slurm {hour}",
            gpu_seconds=3600 + hour,
            reason="test",
            at=at,
        )
        WaitingRequest.objects.create(
            user=alice,
            membership=membership,
            count=1,
            duration_seconds=3600,
            earliest=at,
            latest=at + timedelta(days=1),
            state="waiting" if hour % 2 else "placed",
        )
        SshKey.objects.create(
            user=alice, name=f"k{hour}", fingerprint=f"SHA256:{hour}", added_at=at
        )
    client = signed_in(alice)
    for path, rows in (
        ("standing", "ledger"),
        ("waiting", "requests"),
        ("ssh-keys", "ssh_keys"),
    ):
        found, whole = every_page(client, f"/api/v1/{path}", rows)
        assert len(whole) == 5
        # On a page of the waitlist those that still wait come first.
        assert sorted(map(str, found)) == sorted(map(str, whole))
        if rows != "requests":
            assert found == whole

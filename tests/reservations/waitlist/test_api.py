"""The waitlist over the API and on its page."""

from datetime import timedelta

import pytest
from django.utils import timezone

from reservations import tick
from reservations.models import Membership, Reservation, WaitingRequest
from reservations.rules.lifecycle import State
from tests.factories import make_account, make_gpus, make_node, make_reservation
from tests.reservations.calling import Caller, iso, wish

HOUR = timedelta(hours=1)


@pytest.fixture
def now():
    return timezone.now().replace(microsecond=0)


@pytest.fixture
def full(db, bob, now):
    """Two Gpus that Bob holds for two days."""
    make_account("vision", parent=make_account("institute"))
    gpus = make_gpus(2, make_node("node-a"))
    end = (now + 48 * HOUR).replace(minute=0, second=0)
    for gpu in gpus:
        make_reservation(bob, [gpu], now - HOUR, end, state=State.ACTIVE)
    return gpus


@pytest.mark.once
def test_asking_reading_declining_and_withdrawing(full, alice, carol, now) -> None:
    call = Caller(alice)
    body = {"count": 2, "hours": 8, "latest": iso(now + 72 * HOUR)}
    made = call("POST", "/waiting", body)
    assert made.status_code == 201 and made.body["state"] == "waiting"
    bad = call("POST", "/waiting", body | {"hours": 0, "colour": "red"})
    assert bad.status_code == 422 and set(bad.body["fields"]) == {"hours", "colour"}
    never = call("POST", "/waiting", body | {"gpu_class": "H100"})
    assert never.status_code == 409 and never.body["code"] == "never-fits"

    tick.tick(timezone.now())
    pk = made.body["id"]
    (own,) = call("GET", "/waiting").body["requests"]
    assert own["state"] == "placed" and own["decline_until"]
    assert Caller(carol)("DELETE", f"/waiting/{pk}").status_code == 404
    gone = call("DELETE", f"/waiting/{pk}")
    assert gone.status_code == 409 and gone.body["code"] == "not-waiting"
    declined = call("POST", f"/waiting/{pk}/decline")
    assert declined.body["state"] == "declined"

    pk = call("POST", "/waiting", body).body["id"]
    assert call("POST", f"/waiting/{pk}/accept").body["code"] == "offer-lapsed"
    assert call("DELETE", f"/waiting/{pk}").body["state"] == "cancelled"
    assert Caller()("GET", "/waiting").status_code == 401


def test_ghosts_and_the_chance_of_flex_on_the_calendar(full, alice, bob, now) -> None:
    Membership.objects.update(quota_gpu_seconds=0)
    call = Caller(alice)
    far = now + 100 * HOUR
    body = {"hours": 4, "earliest": iso(far), "latest": iso(far + 8 * HOUR)}
    call("POST", "/waiting", body)
    tick.tick(timezone.now())
    span = f"?start={iso(now)}&end={iso(now + 140 * HOUR)}"
    (ghost,) = call("GET", f"/calendar{span}").body["waiting"]
    assert ghost["planned"] and len(ghost["gpu_ids"]) == 1
    assert Caller(bob)("GET", f"/calendar{span}").body["waiting"] == []

    start = (now + 50 * HOUR).replace(minute=0, second=0)
    asked = Caller(bob)("POST", "/reservations/preview", wish(full[:1], start))
    assert asked.body["chance"]["waiting"] == 0
    WaitingRequest.objects.update(earliest=start, latest=start + 8 * HOUR)
    chance = Caller(bob)("POST", "/reservations/preview", wish(full[:1], start)).body[
        "chance"
    ]
    assert (chance["waiting"], chance["above"]) == (1, 1)
    # Her five possible starts, every hour; those in the first two meet his booking.
    assert chance["ratio"] == 0.4 and chance["text"].startswith(
        "The chance that it is taken is 40 %: 1 of 1 waiting request for such a GPU is"
    )
    made = Caller(bob)("POST", "/reservations", wish(full[:1], start)).body
    shown = Caller(bob)("GET", f"/calendar{span}").body["reservations"]
    entry = next(one for one in shown if one["id"] == made["id"])
    assert entry["chance"]["ratio"] == 0.4
    Reservation.objects.filter(pk=made["id"]).update(kind="firm")
    shown = Caller(bob)("GET", f"/calendar{span}").body["reservations"]
    assert all("chance" not in one for one in shown)


def test_the_page_shows_own_requests_and_keeps_what_the_address_asks(
    full, alice, client, now
) -> None:
    client.force_login(alice)
    assert b"You have no waiting requests" in client.get("/waiting/").content
    Membership.objects.update(quota_gpu_seconds=0)
    far = now + 100 * HOUR
    body = {"hours": 4, "earliest": iso(far), "latest": iso(far + 8 * HOUR)}
    Caller(alice)("POST", "/waiting", body)
    tick.tick(timezone.now())
    page = client.get("/waiting/?count=2&hours=1.5&min_gib=80&latest=never").content
    assert b"planned start" in page and b"1 of 1" in page and b"node-a:0" in page
    assert b'name="count" value="2"' in page and b'name="hours" value="1.5"' in page
    assert "“latest” in the page&#x27;s address was not understood".encode() in page
    WaitingRequest.objects.update(state="cancelled")
    assert b"cancelled" in client.get("/waiting/").content
    assert b"No match." in client.get("/waiting/?state=expired&page=7").content

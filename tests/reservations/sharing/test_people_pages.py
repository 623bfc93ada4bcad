"""Pages and API of sharing, offers, series, giving back in part, and the feed."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from icalendar import Calendar

from reservations.booking import service as booking
from reservations.models import (
    CalendarFeed,
    CoUser,
    Offer,
    Reservation,
    Series,
    SitePolicy,
)
from reservations.sharing.ical import calendar_text, event_of
from tests.factories import make_reservation
from tests.reservations.calling import Caller, iso, wish


def page(user) -> Client:
    client = Client()
    client.force_login(user)
    return client


def said(answer) -> str:
    return " ".join(str(m) for m in answer.context["messages"])


def book(user, gpus, start, hours=2) -> Reservation:
    return booking.book(
        user=user,
        membership=None,
        gpu_ids=[gpu.pk for gpu in gpus],
        start=start,
        end=start + timedelta(hours=hours),
        now=timezone.now(),
    )


@pytest.mark.once
def test_the_page_shares_offers_and_gives_back_and_says_refusals(
    gpus, alice, bob, carol, hour
) -> None:
    row = book(alice, gpus[:2], hour)
    theirs = book(carol, gpus[2:], hour + timedelta(days=1))
    path = f"/reservations/{row.pk}/"
    own, mate = page(alice), page(bob)
    shown = own.get(path).content.decode()
    for part in ("Return some GPUs", "Share", "Give away or swap", "node"):
        assert part in shown
    assert f'<option value="{theirs.pk}" data-who="Carol"' in shown

    def text(answer) -> str:
        return answer.content.decode()

    def post(client, where, **data):
        return client.post(f"{path}{where}", data, follow=True)

    assert "can use it now" in said(post(own, "share/", user="bob"))
    assert "There is no member “carol”" in text(post(own, "share/", user="carol"))
    assert "Fill this in" in text(post(own, "share/"))
    shown = mate.get(path).content.decode()
    assert "Shared with you" in shown and "Return some GPUs" not in shown
    assert "You may not share" in text(post(mate, "share/", user="bob"))

    assert "Enter who gets it" in text(post(own, "offer/"))
    assert "Offered to Bob" in said(post(own, "offer/", to="bob"))
    assert "already offered to someone" in text(post(own, "offer/", to="bob"))
    row.refresh_from_db()
    part = {"gpus": [gpus[1].pk], "hours": "", "version": row.version}
    assert "Given back" in said(post(own, "give-back/", **part))
    assert row.allocations.count() == 1
    for bad in ({"hours": "x"}, {"gpus": ["9" * 30]}, {"hours": "nan"}, {}):
        answer = post(own, "give-back/", version=row.version + 1, **bad)
        assert answer.status_code == 200 and 'class="error"' in text(answer)
    assert "Removed" in said(post(own, f"unshare/{bob.pk}/"))
    assert not CoUser.objects.sharing().exists()
    assert own.get(f"{path}share/").status_code == 405


@pytest.mark.once
def test_what_was_typed_stays_in_its_open_section_with_the_refusal(
    gpus, alice, hour
) -> None:
    row = book(alice, gpus[:1], hour)
    path = f"/reservations/{row.pk}/"
    own = page(alice)
    typed = {"to": "nobody-here", "account": "vision", "message": "please swap"}
    shown = own.post(f"{path}offer/", typed, follow=True).content.decode()
    section = shown.partition("Give away or swap")
    assert 'people-fold" open>' in section[0].rpartition("<details")[2]
    for value in typed.values():
        assert f'value="{value}"' in section[2]
    assert 'class="error" role="alert"' in section[2]
    again = own.get(path).content.decode()
    assert "please swap" not in again
    assert f"start={hour:%Y-%m-%dT%H}" in again  # a series like it begins with it


@pytest.mark.once
def test_hidden_names_stay_hidden_in_a_swap(gpus, alice, carol, hour) -> None:
    policy = SitePolicy.current()
    policy.names_visible = False
    policy.save()
    own, theirs = book(alice, gpus[:1], hour), book(carol, gpus[1:2], hour)
    path = f"/reservations/{own.pk}/"
    body = {"wanted": theirs.pk}
    shown = page(alice).post(f"{path}offer/", body, follow=True).content.decode()
    listed = page(alice).get("/offers/").content.decode()
    told = Caller(alice)("GET", "/offers").body["offers"][0]
    pk = told["id"]
    page(carol).post(f"/offers/{pk}/decline/")
    notices = page(alice).get("/notices/").content.decode()
    for text in (shown, listed, str(told), notices):
        assert "Carol" not in text and "carol" not in text
    assert "Offered to Nlp" in shown and "The other side declined" in notices


def test_an_offer_is_looked_at_accepted_and_listed(gpus, alice, carol, hour) -> None:
    row = book(alice, gpus[:1], hour)
    made = Caller(alice)("POST", "/offers", {"reservation": row.pk, "to": "carol"})
    assert made.status_code == 201 and made.body["to"] == "Carol"
    call = Caller(carol)
    (listed,) = call("GET", "/offers").body["offers"]
    assert (listed["id"], listed["from"], listed["to_me"]) == (
        made.body["id"],
        "Alice",
        True,
    )
    seen = call("POST", f"/offers/{made.body['id']}/preview").body
    assert (seen["ok"], seen["kind"]) == (True, "firm")
    shown = page(carol).get("/offers/").content.decode()
    assert "Alice offers you this booking" in shown and "Accept" in shown
    assert (
        "You offered this booking to Carol"
        in page(alice).get("/offers/").content.decode()
    )
    assert page(alice).get("/offers/?state=all&page=x").status_code == 200
    answer = page(carol).post(
        f"/offers/{made.body['id']}/accept/", {"kind": "firm"}, follow=True
    )
    assert "The booking is yours now, as firm" in said(answer)
    given = Offer.objects.get().given
    assert answer.redirect_chain[-1][0] == f"/reservations/{given.pk}/"
    over = call("POST", f"/offers/{made.body['id']}/decline")
    assert (over.status_code, over.body["code"]) == (409, "offer-over")
    assert call("POST", "/offers/999/accept").status_code == 404
    assert call("POST", "/offers", {"reservation": row.pk}).status_code in (403, 409)
    # Given away, not cancelled: nothing to undo.
    undo = Caller(alice)("POST", f"/reservations/{row.pk}/undo")
    assert undo.status_code == 409


@pytest.mark.once
def test_the_api_shares_prices_and_gives_back(gpus, alice, bob, hour) -> None:
    row = book(alice, gpus[:2], hour, 4)
    call = Caller(alice)
    path = f"/reservations/{row.pk}"
    made = call("POST", f"{path}/co-users", {"user": "bob"})
    assert (made.status_code, made.body["user"]) == (201, "Bob")
    span = f"/calendar?start={iso(hour)}&end={iso(hour + timedelta(days=1))}"
    (seen,) = Caller(bob)("GET", span).body["reservations"]
    assert (seen["shared"], seen["mine"], seen["editable"]) == (True, False, False)
    price = call("POST", f"{path}/give-back/preview", {"hours": 1})
    assert price.body["returned_credits"] == 20
    assert price.body["late_credits"] == 10
    refused = Caller(bob)("POST", f"{path}/give-back/preview", {"hours": 1})
    assert refused.status_code == 403
    bad = call("POST", f"{path}/give-back", {"hours": -1, "version": 1})
    assert (bad.status_code, set(bad.body["fields"])) == (422, {"hours"})
    row.refresh_from_db()
    done = call("POST", f"{path}/give-back", {"hours": 1, "version": row.version})
    assert done.body["end"] == iso(hour + timedelta(hours=3))
    assert call("DELETE", f"{path}/co-users/{bob.pk}").body["removed"] is True


def test_a_series_is_previewed_saved_listed_and_ended(gpus, alice, bob, hour) -> None:
    start = hour + timedelta(days=1)
    make_reservation(
        bob, gpus[:1], start + timedelta(days=1), start + timedelta(days=1, hours=1)
    )
    call = Caller(alice)
    body = wish(gpus[:1], start, 1, repeat="daily", times=3)
    seen = call("POST", "/series/preview", body).body
    assert [day["state"] for day in seen["days"]] == ["booked", "refused", "booked"]
    assert seen["days"][1]["next_slot"] and "node" in seen["days"][1]["why"]
    refused = call("POST", "/series", body)
    assert (refused.status_code, refused.body["code"]) == (409, "series-conflict")
    made = call("POST", "/series", {**body, "skip_refused": True})
    assert made.status_code == 201
    assert Reservation.objects.filter(user=alice).count() == 2
    client, pk = page(alice), made.body["id"]
    assert "every day at" in client.get("/series/").content.decode()
    shown = client.get(f"/series/{pk}/").content.decode()
    assert "Skip<" in shown and "Skip this and later" in shown
    assert page(bob).get(f"/series/{pk}/").status_code == 404
    (listed,) = call("GET", "/series").body["series"]
    assert len(listed["days"]) == 3
    span = f"/calendar?start={iso(start)}&end={iso(start + timedelta(days=1))}"
    assert call("GET", span).body["reservations"][0]["series"] == pk
    day = listed["days"][0]["day"]
    booked = client.get(f"/reservations/{listed['days'][0]['reservation']}/")
    assert "part of" in booked.content.decode()
    for act, data in (("skip", {"day": day}), ("cancel", {"day": "2026-99-99"})):
        assert client.post(f"/series/{pk}/{act}/", data, follow=True).status_code == 200
    cut = client.post(f"/series/{pk}/cancel/", {"day": day}, follow=True)
    assert "1 booking cancelled" in said(cut)
    client.post(f"/series/{pk}/end/")
    assert Series.objects.get(pk=pk).state == "ended"
    assert "No running series" in client.get("/series/").content.decode()
    draft = client.get(f"/series/new/?gpus={gpus[0].pk}&start=2026-03-02T09:00")
    assert 'value="2026-03-02T09:00"' in draft.content.decode()
    for wrong in ({"times": None}, {"repeat": "hourly"}, {"times": 0}):
        assert call("POST", "/series/preview", {**body, **wrong}).status_code in (
            409,
            422,
        )


def test_the_feed_is_secret_revocable_and_without_names(
    gpus, alice, bob, hour, client
) -> None:
    row = book(alice, gpus[:2], hour)
    Reservation.objects.filter(pk=row.pk).update(purpose="meeting with Bob")
    book(bob, gpus[2:], hour)
    own = page(alice)
    answer = own.post("/me/calendar/")
    url = answer.context["url"]
    address = url.removeprefix("http://testserver")
    assert CalendarFeed.objects.get().address_hash not in url
    read = client.get(address)
    assert read["Content-Type"] == "text/calendar; charset=utf-8"
    text = read.content.decode().replace("\r\n ", "")
    assert text.count("BEGIN:VEVENT") == 1
    assert f"UID:reservation-{row.pk}@testserver" in text
    assert f"DTSTART:{hour:%Y%m%dT%H%M%SZ}" in text
    assert "SUMMARY:2 GPUs\\, firm" in text
    for name in ("alice", "bob", "meeting"):
        assert name not in text.lower()
    assert client.get("/ical/wrong.ics").status_code == 404
    again = own.post("/me/calendar/").context["url"].removeprefix("http://testserver")
    assert client.get(address).status_code == 404, "a new one ends the one before"
    alice.is_active = False
    alice.save()
    assert client.get(again).status_code == 404
    alice.is_active = True
    alice.save()
    assert client.get(again).status_code == 200
    own = page(alice)
    assert "last read" in own.get("/me/").content.decode()
    own.post("/me/calendar/revoke/")
    assert client.get(again).status_code == 404


def calendar_of(summary: str) -> str:
    """Return a calendar with one event, which is tentative."""
    at = timezone.now()
    event = event_of(
        uid="1@x",
        start=at,
        end=at,
        summary=summary,
        location="",
        changed_at=at,
        tentative=True,
    )
    return calendar_text([event], name="n").decode()


def test_lines_of_a_calendar_are_folded_between_characters_and_escaped() -> None:
    text = calendar_of("a;b,c\\d\ne" + "ü" * 80)
    lines = text.split("\r\n")
    assert lines[-1] == "" and "\n" not in "".join(lines)
    assert all(len(line.encode()) <= 75 for line in lines)
    whole = text.replace("\r\n ", "")
    assert "SUMMARY:a\\;b\\,c\\\\d\\ne" + "ü" * 80 + "\r\n" in whole
    assert "STATUS:TENTATIVE" in whole
    assert whole.startswith("BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:")
    assert "REFRESH-INTERVAL;VALUE=DURATION:PT15M\r\n" in whole


def test_a_calendar_has_no_control_characters_and_reads_back() -> None:
    text = calendar_of("2 GPUs\x00\r\x1b, firm")
    (event,) = Calendar.from_ical(text).walk("VEVENT")
    assert event["SUMMARY"] == "2 GPUs, firm"
    assert event["DTSTAMP"].dt.tzinfo is not None


@pytest.mark.once
@pytest.mark.parametrize("path", ["/offers/", "/series/", "/series/new/"])
def test_empty_lists_teach(gpus, alice, path) -> None:
    answer = page(alice).get(path)
    assert answer.status_code == 200

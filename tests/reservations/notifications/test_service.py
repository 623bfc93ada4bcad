"""The messages to a displaced user: at the bell, on the page, by the API, on the
socket.
"""

from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.test import Client
from django.utils import timezone

from reservations.booking.service import book
from reservations.models import Membership, Notice, SitePolicy
from tests.factories import make_account, make_gpus
from tests.reservations.booking.test_consumers import heard_by, opened
from tests.reservations.calling import Caller, iso

HOUR = 3600


def displace(alice, carol):
    """Have Carol's firm booking take Alice's flex; the flex, as it was booked."""
    root = make_account("uni")
    for name in ("vision", "nlp"):
        account = make_account(name)
        account.parent = root
        account.save()
    gpus = make_gpus(2)
    Membership.objects.filter(user=alice).update(quota_gpu_seconds=0)
    now = timezone.now()
    start = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=20)
    wanted = {"membership": None, "gpu_ids": [gpus[0].pk], "start": start}
    flex = book(user=alice, end=start + timedelta(hours=2), now=now, **wanted)
    book(user=carol, end=start + timedelta(hours=1), now=now, **wanted)
    flex.refresh_from_db()
    return flex


@pytest.fixture
def flex(transactional_db, alice, carol):
    return displace(alice, carol)


def page(user, path: str) -> str:
    client = Client()
    client.force_login(user)
    answer = client.get(path)
    assert answer.status_code == 200
    return answer.content.decode()


def test_the_page_and_the_bell_say_who_why_and_what_comes_back(flex, alice) -> None:
    html = page(alice, f"/reservations/{flex.pk}/")
    assert "Someone else has this time now" in html
    assert "with a firm booking within quota." in html
    assert "You got 20 credits back." in html
    assert "Book the next equal slot" in html
    assert "1 unread notice" in page(alice, "/standing/")


def test_a_read_notice_stays_on_the_page_and_leaves_the_bell(flex, alice) -> None:
    ask = Caller(alice)
    (told,) = ask("GET", "/notices").body["notices"]
    assert (told["reservation"], told["read"]) == (flex.pk, False)
    assert ask("POST", f"/notices/{told['id']}/read").status_code == 200
    assert ask("GET", "/notices?unread=true").body["notices"] == []
    assert "unread notice" not in page(alice, "/standing/")
    assert "Someone else has this time now" in page(alice, f"/reservations/{flex.pk}/")


def test_nobody_else_reads_or_puts_away_a_notice(flex, bob, carol) -> None:
    pk = Notice.objects.get().pk
    for user in (bob, carol):
        assert Caller(user)("GET", "/notices").body["notices"] == []
        assert Caller(user)("POST", f"/notices/{pk}/read").status_code == 404
    assert Notice.objects.get().read_at is None
    assert "Someone else has this time now" not in page(
        bob, f"/reservations/{flex.pk}/"
    )


def test_only_the_group_is_told_where_names_are_hidden(flex, alice) -> None:
    policy = SitePolicy.current()
    policy.names_visible = False
    policy.save()
    (told,) = Caller(alice)("GET", "/notices").body["notices"]
    assert "Nlp took over" in told["text"] and "Carol" not in told["text"]


def test_one_click_books_the_next_equal_slot(flex, alice) -> None:
    client = Client()
    client.force_login(alice)
    body = client.get(f"/reservations/{flex.pk}/").context["next"]["body"]
    made = Caller(alice)("POST", "/reservations", body)
    assert made.status_code == 201
    assert made.body["kind"] == "flex"
    assert made.body["start"] == iso(flex.start), "the other GPU is free then"


def test_the_preview_names_what_goes_or_only_the_group(flex, alice, carol) -> None:
    ask = Caller(alice)
    gpu = Notice.objects.get().reservation.allocations.get().gpu_id
    start = flex.start + timedelta(hours=4)
    wish = {
        "gpu_ids": [gpu],
        "start": iso(start),
        "end": iso(start + timedelta(hours=1)),
    }
    kept = ask("POST", "/reservations/preview", wish).body
    assert kept["taken_until"] == iso(start - timedelta(hours=12))
    assert kept["displaces"] == []
    assert ask("POST", "/reservations", wish).status_code == 201
    gone = Caller(carol)("POST", "/reservations/preview", wish).body["displaces"]
    assert gone == [
        {
            "user": "Alice",
            "account": "Vision",
            "refund_credits": 10,
            "start": wish["start"],
            "end": wish["end"],
            "of_group": True,
            "own_level_fs": pytest.approx(0.5),
            "their_level_fs": None,
        }
    ]
    policy = SitePolicy.current()
    policy.names_visible = False
    policy.save()
    gone = Caller(carol)("POST", "/reservations/preview", wish).body["displaces"]
    assert (gone[0]["user"], gone[0]["account"]) == (None, "Vision")


@pytest.mark.django_db(transaction=True)
async def test_only_the_displaced_hears_it_on_the_socket(alice, bob, carol):
    alices, _ = await opened(alice)
    bobs, _ = await opened(bob)
    flex = await sync_to_async(displace)(alice, carol)
    heard = [await heard_by(alices) for _ in range(4)]
    (told,) = [one for one in heard if one["type"] == "notice.told"]
    assert told["notice"]["reservation"] == flex.pk
    assert "Carol (Nlp) took over" in told["notice"]["text"]
    others = [await heard_by(bobs) for _ in range(3)]
    assert {one["type"] for one in others} == {"reservation.changed"}
    assert await bobs.receive_nothing(timeout=0.3)
    await alices.disconnect()
    await bobs.disconnect()

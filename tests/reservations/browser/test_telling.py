"""News reach every open page. A refusal shows its rule and the alternative."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone
from playwright.sync_api import expect

from reservations.models import Membership, Notice, Reservation, Voucher, WaitingRequest
from reservations.notifications.live import user_group
from reservations.notifications.service import notify
from tests.pages import eventually, violations
from tests.reservations.browser.ground import Lab, page_of

pytestmark = pytest.mark.django_db(transaction=True)


def release_seen(alice, own) -> None:
    """Tell as the tick does when nobody came."""
    detail = {"reason": "nobody came", "charged_gpu_seconds": 36_000}
    with transaction.atomic():
        notify(
            user=alice,
            kind="released",
            reservation=own,
            detail=detail,
            now=timezone.now(),
        )
    connection.close()


def test_the_bell_is_fresh_while_a_page_is_open(browser, live_asgi, redis_client):
    lab = Lab()
    alice = lab.people["alice"]
    own = lab.hold("alice", [0], 8, 12)
    with page_of(browser, live_asgi, alice) as page:
        sockets = []
        page.on("websocket", lambda socket: sockets.append(socket.url))
        page.goto("/me/notices/")
        expect(page.locator("#bell .badge")).to_have_count(0)
        listeners = f"*:group:{user_group(alice.pk)}"
        eventually(page, lambda: bool(redis_client.keys(listeners)))
        assert [url for url in sockets if url.endswith("/ws/alerts/")] == sockets
        # In a thread: Playwright keeps a loop running in this one.
        with ThreadPoolExecutor(max_workers=1) as pool:
            pool.submit(release_seen, alice, own).result()
        expect(page.locator("#bell .badge")).to_have_text("1")
        expect(page.locator("#toasts")).to_contain_text("nobody checked in")
        page.click("#bell")
        page.locator("#alerts-menu a", has_text="All notices").click()
        expect(page.locator(".notice-row.is-unread")).to_have_count(1)
        page.wait_for_load_state()
        assert violations(page) == []
        page.click("[data-read]")
        expect(page.locator(".notice-row.is-unread")).to_have_count(0)
        expect(page.locator("#bell .badge")).to_have_count(0)
        assert Notice.objects.unread(alice).count() == 0


def test_a_refusal_shows_its_numbers_and_the_ways_around_it(browser, live_asgi):
    lab = Lab()
    bob = lab.people["bob"]
    Membership.objects.filter(user=bob).update(quota_gpu_seconds=36_000)
    lab.hold("alice", [0], 14, 16, kind="flex")
    past = lab.hold("bob", [1], 1, 2, state="refunded")
    Voucher.objects.create(
        membership=bob.memberships.get(), given_for=past, reason="a GPU was lost"
    )
    with page_of(browser, live_asgi, bob) as page:
        gpu = lab.gpus[0].pk
        page.goto(
            f"/calendar/?gpus={gpu}&start={lab.tomorrow}T14:00&end={lab.tomorrow}T19:00"
        )
        refusal = page.locator("#verdict .refusal")
        expect(refusal).to_have_attribute("data-code", "flex-held")
        expect(refusal.locator(".levels dt")).to_have_count(2)
        expect(page.locator(".timeline .is-draft")).to_be_visible()
        assert violations(page) == []
        page.click("#verdict [data-wait]")
        expect(page.locator("#toasts")).to_contain_text(
            "On the waitlist: 1 GPU for 5 h."
        )
        assert WaitingRequest.objects.get().user == bob
        page.click("#toasts .undo")
        expect(page.locator("#toasts .undo")).to_have_count(0)
        far = (timezone.localdate() + timedelta(days=20)).isoformat()
        page.goto(f"/calendar/?gpus={gpu}&start={far}T10:00&end={far}T11:00")
        expect(refusal).to_have_attribute("data-code", "beyond-horizon")
        page.click("#verdict [data-voucher]")
        expect(page.locator("#verdict")).to_contain_text(
            "Firm. Guaranteed by your voucher: nobody can take it from you."
        )
        assert violations(page) == []
        page.click("#book")
        expect(page.locator("#drawer")).to_be_hidden()
        made = Reservation.objects.filter(user=bob).latest("pk")
        assert Voucher.objects.get().used_for == made

"""The waitlist's page in the browser: request with a job, see it, decline, withdraw."""

from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from placement.models import WaitingLaunch
from reservations.models import Allocation, Reservation, WaitingRequest
from reservations.rules.window import whole_second
from reservations.store.booking_facts import site_policy
from reservations.waitlist import scheduler
from tests.factories import make_reservation
from tests.reservations.browser.ground import Lab, page_of
from tests.reservations.browser.test_people import PHONE, fits

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_request_with_a_job_is_asked_for_placed_declined_and_withdrawn(
    browser, live_asgi
):
    lab = Lab()
    now = timezone.now()
    held = make_reservation(
        lab.people["bob"], lab.gpus[:7], now, now + timedelta(days=3)
    )
    alices = page_of(
        browser, live_asgi, lab.people["alice"], viewport=PHONE, color_scheme="dark"
    )
    with alices as page:
        page.goto("/waiting/?count=2&hours=4")
        expect(page.locator("main")).to_contain_text("You have no waiting requests")
        page.select_option("#wait-gib", "80")
        page.click('summary:has-text("With a job")')
        page.select_option("#wait-runs", "burn-in")
        expect(page.locator("#wait-script")).to_be_hidden()
        page.fill("#wait-job-name", "overnight")
        defaults = page.input_value("#wait-settings")
        page.fill("#wait-settings", "warmth = 9")
        fits(page, "waiting-ask")
        page.click("#wait-form button[type=submit]")
        said = page.locator("#wait-problem")
        expect(said).to_contain_text("this recipe has no such setting")
        assert page.input_value("#wait-job-name") == "overnight"
        page.fill("#wait-settings", defaults)
        page.click("#wait-form button[type=submit]")
        card = page.locator(".wait").first
        expect(card).to_contain_text("A job waits with it")
        row = WaitingRequest.objects.get()
        assert (row.count, row.has_job) == (2, True)
        kept = WaitingLaunch.objects.get().launch
        assert (kept["name"], kept["recipe"]) == ("overnight", "burn-in")

        # Bob's time comes back a day ahead: placed, and declined in time.
        Allocation.objects.filter(reservation=held).update(live=False)
        Reservation.objects.filter(pk=held.pk).update(state="cancelled")
        row.earliest = whole_second(now) + timedelta(hours=20)
        row.save()
        scheduler.place(whole_second(timezone.now()), site_policy())
        page.reload()
        expect(card).to_contain_text("Booked for")
        fits(page, "waiting-placed")
        page.click('button:has-text("Decline")')
        expect(card).to_contain_text("declined")
        page.goto("/waiting/")
        page.click("#wait-form button[type=submit]")
        withdraw = page.locator('.wait button:has-text("Withdraw")')
        expect(withdraw).to_be_visible()
        # The page was loaded again, and its script has to be there.
        page.wait_for_load_state()
        withdraw.click()
        page.click('dialog button:has-text("Withdraw")')
        expect(page.locator("main")).to_contain_text("You have no waiting requests")
    states = set(WaitingRequest.objects.values_list("state", flat=True))
    assert states == {"declined", "cancelled"}

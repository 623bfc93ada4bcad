"""The drawer's text about displacing, and the view of the displaced user."""

import re

import pytest
from playwright.sync_api import expect

from reservations.models import Membership, Reservation
from tests.pages import check_themes, fits, violations
from tests.reservations.browser.ground import Lab, page_of

pytestmark = pytest.mark.django_db(transaction=True)

PHONE = {"width": 360, "height": 780}


@pytest.fixture
def lab(live_asgi: str) -> Lab:
    return Lab()


def test_the_drawer_says_what_goes_before_the_button_and_bob_is_told(
    browser, live_asgi, lab
):
    flex = lab.hold("bob", [0], 14, 16, kind="flex")
    bobs = page_of(browser, live_asgi, lab.people["bob"])
    carols = page_of(browser, live_asgi, lab.people["carol"])
    with bobs as bob, carols as carol:
        bob.goto(f"/calendar/?date={lab.tomorrow}")
        expect(bob.locator("#toolbar")).to_have_attribute("data-live", "open")
        gpu = lab.gpus[0].pk
        carol.goto(
            f"/calendar/?gpus={gpu}&start={lab.tomorrow}T14:00&end={lab.tomorrow}T15:00"
        )
        verdict = carol.locator("#verdict")
        expect(verdict).to_contain_text(
            "Bob’s flex booking, tomorrow 14:00 – 16:00. They get 20 credits back"
        )
        assert violations(carol) == []
        carol.click("#book")
        expect(carol.locator("#drawer")).to_be_hidden()
        expect(bob.locator("#toasts")).to_contain_text("Carol (Nlp) took over")
        bob.locator("#toasts a").click()
        bob.wait_for_url(f"**/reservations/{flex.pk}/")
        expect(bob.locator("#told-title")).to_be_visible()
        bob.locator("[popovertarget=alerts-menu]").click()
        bob.keyboard.press("Escape")
        assert violations(bob) == []
        bob.click("[data-act=take]")
        expect(bob).not_to_have_url(re.compile(f"/reservations/{flex.pk}/$"))
        assert Reservation.objects.filter(user=lab.people["bob"]).live().count() == 1
        expect(bob.locator(".badge")).to_have_text("1")


def test_flex_says_until_when_it_can_be_taken_on_a_phone(browser, live_asgi, lab):
    Membership.objects.filter(user=lab.people["alice"]).update(quota_gpu_seconds=0)
    with page_of(browser, live_asgi, lab.people["alice"], viewport=PHONE) as page:
        gpu = lab.gpus[0].pk
        page.goto(
            f"/calendar/?gpus={gpu}&start={lab.tomorrow}T17:00&end={lab.tomorrow}T18:00"
        )
        expect(page.locator("#verdict")).to_contain_text(
            "Until tomorrow 05:00, someone who has had less GPU time can take it."
        )
        fits(page)
        check_themes(page, "dark")

"""A series from the drawer, a part given back at a price, an offer accepted."""

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from reservations.models import Offer, Reservation
from tests.pages import violations
from tests.reservations.browser.ground import Lab, page_of

pytestmark = pytest.mark.django_db(transaction=True)

PHONE = {"width": 360, "height": 780}


@pytest.fixture
def lab(live_asgi: str) -> Lab:
    return Lab()


def fits(page: Page, name: str) -> None:
    """Nothing sticks out, axe finds nothing; the picture is kept where asked."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert violations(page) == []
    if folder := os.environ.get("PEOPLE_PICTURES"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def test_a_series_a_part_and_an_offer_by_hand(browser, live_asgi, lab):
    gpu = lab.gpus[0].pk
    lab.hold("bob", [1], 9, 11)
    alices = page_of(browser, live_asgi, lab.people["alice"], color_scheme="light")
    with alices as page:
        page.goto(
            f"/calendar/?gpus={gpu}&start={lab.tomorrow}T14:00&end={lab.tomorrow}T16:00"
        )
        page.click("#repeat")
        page.wait_for_url("**/series/new/**")
        expect(page.locator("#start")).to_have_value(f"{lab.tomorrow}T14:00")
        page.fill("#times", "3")
        page.select_option("#repeat", "daily")
        page.click("text=Preview each day")
        expect(page.locator("#day-rows tr")).to_have_count(3)
        fits(page, "series-new")
        page.locator("#day-rows input").nth(1).uncheck()
        page.click("#save")
        page.wait_for_url(re.compile(r"/series/\d+/"))
        expect(page.locator("h1")).to_contain_text("Series")
        expect(page.locator("tbody tr")).to_have_count(3)
        fits(page, "series")
        page.locator("tbody a").first.click()
        page.wait_for_url("**/reservations/**")
        page.click('summary:has-text("Return some GPUs")')
        page.fill("#give-hours", "1")
        expect(page.locator("[data-price-said]")).to_contain_text("10 credits")
        fits(page, "reservation")
        page.click('summary:has-text("Give away or swap")')
        page.fill("#offer-to", "carol")
        page.click("text=Send the offer")
        expect(page.locator("main")).to_contain_text("Offered to Carol")
        page.goto("/me/")
        page.click("text=Create link")
        expect(page.locator("#feed-url")).to_be_visible()
        fits(page, "feed")
    carols = page_of(
        browser, live_asgi, lab.people["carol"], viewport=PHONE, color_scheme="dark"
    )
    with carols as page:
        page.goto("/offers/")
        expect(page.locator("[data-outlook]")).to_contain_text("would be firm")
        fits(page, "offers")
        page.click('button:has-text("Accept")')
        expect(page.locator("main")).to_contain_text(
            "The booking is yours now, as firm"
        )
        page.evaluate(
            "document.querySelectorAll('details').forEach(d => d.open = true)"
        )
        fits(page, "given")
        page.goto("/series/new/")
        fits(page, "series-new-phone")
    given = Offer.objects.get().given
    assert given.user == lab.people["carol"]
    assert Reservation.objects.filter(user=lab.people["alice"]).live().count() == 1

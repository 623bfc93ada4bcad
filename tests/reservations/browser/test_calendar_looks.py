"""The same pages on a phone, in the dark, and for people who cannot see them."""

import pytest
from playwright.sync_api import expect

from reservations.models import Reservation
from tests.pages import check_looks, check_themes, fits
from tests.reservations.browser.ground import Lab, page_of, set_when

pytestmark = pytest.mark.django_db(transaction=True)

DESK = {"width": 1360, "height": 860}
PHONE = {"width": 360, "height": 780}


@pytest.fixture
def lab(live_asgi: str) -> Lab:
    lab = Lab()
    lab.hold("alice", [0, 1], 8, 12, purpose="mine")
    lab.hold("bob", [2], 9, 15, kind="flex")
    lab.hold("carol", [4], 0, 20)
    return lab


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_axe_finds_nothing_on_the_calendar(browser, live_asgi, lab, size):
    with page_of(browser, live_asgi, lab.people["alice"], viewport=size) as page:
        page.goto(f"/calendar/?date={lab.tomorrow}")
        expect(page.locator(".row-gpu, .agenda-gpu").first).to_be_visible()
        if size == PHONE:
            page.locator(".agenda-gpu summary").first.click()
        check_themes(page)
        page.click("#open-find")
        check_themes(page)
        page.click("#new-booking")
        page.locator("#gpu-list input").first.check()
        set_when(page, "start", f"{lab.tomorrow}T09:00")
        expect(page.locator("#verdict .notice")).to_be_visible()
        check_themes(page)


def test_axe_finds_nothing_in_the_week_and_the_details(browser, live_asgi, lab):
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        page.goto(f"/calendar/?view=week&date={lab.tomorrow}")
        page.locator(".bar-face", has_text="mine").first.click()
        expect(page.locator("#details-title")).to_be_visible()
        page.wait_for_timeout(300)
        check_themes(page)


def test_axe_finds_nothing_on_standing_and_reservation(browser, live_asgi, lab):
    own = Reservation.objects.get(user=lab.people["alice"])
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        for path in ("/standing/", f"/reservations/{own.pk}/"):
            page.goto(path)
            expect(page.locator("h1")).to_be_visible()
            check_looks(page)


def test_on_a_phone_a_free_time_is_booked_from_the_agenda(browser, live_asgi, lab):
    with page_of(browser, live_asgi, lab.people["alice"], viewport=PHONE) as page:
        page.goto(f"/calendar/?date={lab.tomorrow}")
        gpu = page.locator(".agenda-gpu").nth(3)
        gpu.locator("summary").click()
        fits(page)
        gpu.get_by_role("button", name=" free").click()
        page.get_by_role("button", name="2 h", exact=True).click()
        expect(page.locator("#verdict")).to_contain_text("Firm")
        fits(page)
        page.click("#book")
        expect(page.locator("#drawer")).to_be_hidden()
        expect(gpu.locator(".agenda-item", has_text="You")).to_be_visible()
        made = Reservation.objects.order_by("-pk").first()
        assert made is not None
        assert made.end - made.start == lab.at(2) - lab.at(0)


def test_on_a_reservations_page_a_cancel_can_be_undone(browser, live_asgi, lab):
    own = Reservation.objects.get(user=lab.people["alice"])
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        page.goto(f"/reservations/{own.pk}/")
        page.get_by_role("button", name="Cancel", exact=True).click()
        expect(page.locator("#reservation .state")).to_have_text("cancelled")
        page.get_by_role("button", name="Undo").click()
        expect(page.locator("#reservation .state")).to_have_text("confirmed")


def test_on_a_reservations_page_some_gpus_are_given_back(browser, live_asgi, lab):
    own = Reservation.objects.get(user=lab.people["alice"])
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        page.goto(f"/reservations/{own.pk}/")
        page.locator("#change").get_by_label("node-a:1").uncheck()
        page.get_by_role("button", name="Save changes").click()
        expect(page.locator(".toast")).to_contain_text("Changed")
        expect(page.locator("#change [name=gpu]")).to_have_count(0)
        live = own.allocations.filter(live=True).values_list("gpu_id", flat=True)
        assert list(live) == [lab.gpus[0].pk]

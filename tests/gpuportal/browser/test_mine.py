"""My reservations, pressed: extend, check in, give back, cancel with undo."""

import os
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from reservations.models import Reservation
from reservations.rules.lifecycle import State
from tests.factories import make_reservation
from tests.pages import check_looks, violations
from tests.reservations.browser.ground import Lab, page_of

pytestmark = pytest.mark.django_db(transaction=True)
HOUR = timedelta(hours=1)


@pytest.fixture
def lab(live_asgi: str) -> Lab:
    return Lab()


def running(lab: Lab) -> Reservation:
    """Alice's reservation, begun off the grid with "now" as its start, for an hour."""
    now = timezone.now()
    end = now.replace(minute=0, second=0, microsecond=0) + 2 * HOUR
    return make_reservation(
        lab.people["alice"],
        lab.gpus[:2],
        now - timedelta(minutes=3, seconds=17),
        end,
        state=State.ACTIVE,
    )


def reads_well(page: Page, name: str) -> None:
    check_looks(page, desktop=(1440, 900), phone=(390, 900))
    if folder := os.environ.get("PICTURES"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def test_it_reads_well_on_every_screen(browser, live_asgi, lab):
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        page.goto("/mine/")
        expect(page.get_by_role("heading", name="Welcome, Alice")).to_be_visible()
        reads_well(page, "mine-new")
        running(lab)
        lab.hold("alice", [2], 9, 13, purpose="thesis, run 3")
        lab.hold("alice", [3], 15, 17, kind="flex")
        now = timezone.now()
        make_reservation(
            lab.people["alice"],
            lab.gpus[4:5],
            now - 50 * HOUR,
            now - 40 * HOUR,
            state=State.ENDED,
        )
        page.reload()
        expect(page.get_by_role("heading", name="Now")).to_be_visible()
        reads_well(page, "mine")


def test_a_running_one_is_checked_in_made_longer_and_given_back(
    browser, live_asgi, lab
):
    made = running(lab)
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        page.goto("/mine/")
        page.get_by_role("button", name="I’m here").click()
        expect(page.get_by_text("Checked in.")).to_be_visible()
        made.refresh_from_db()
        assert made.checked_in_at
        end = made.end
        page.get_by_role("button", name="One hour longer").click()
        expect(page.locator(".toast").get_by_text("One hour longer.")).to_be_visible()
        made.refresh_from_db()
        assert made.end == end + HOUR
        page.get_by_role("button", name="Undo").click()
        expect(
            page.locator("#toasts").get_by_role("button", name="Undo")
        ).to_have_count(0)
        made.refresh_from_db()
        assert made.end == end
        page.get_by_role("button", name="Give back now").click()
        page.get_by_role("dialog").get_by_role("button", name="Give back now").click()
        expect(page.get_by_text("Given back.")).to_be_visible()
        made.refresh_from_db()
        assert made.state == State.RELEASED


def test_a_booking_ahead_is_cancelled_and_the_cancel_undone(browser, live_asgi, lab):
    made = lab.hold("alice", [0], 9, 11)
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        page.goto("/mine/")
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_text("Cancelled.")).to_be_visible()
        made.refresh_from_db()
        assert made.state == State.CANCELLED
        page.get_by_role("button", name="Undo").click()
        expect(page.get_by_role("heading", name="Next")).to_be_visible()
        made.refresh_from_db()
        assert made.state == State.CONFIRMED


def test_the_tour_is_offered_until_it_was_closed(browser, live_asgi, lab):
    alice = lab.people["alice"]
    with page_of(browser, live_asgi, alice) as page:
        page.goto("/mine/")
        page.get_by_role("button", name="Show the tour").click()
        tour = page.get_by_role("dialog")
        expect(tour).to_contain_text("Step 1 of 5")
        assert violations(page) == []
        for step in range(2, 6):
            page.get_by_role("button", name="Next").click()
            expect(tour).to_contain_text(f"Step {step} of 5")
        with page.expect_response("**/me/tour/"):
            page.get_by_role("button", name="Done").click()
        expect(page.get_by_text("New here?")).to_have_count(0)
        page.reload()
        expect(page.get_by_role("heading", name="Welcome, Alice")).to_be_visible()
        expect(page.get_by_text("New here?")).to_have_count(0)
        page.goto("/help/")
        page.get_by_role("button", name="Show the tour").click()
        expect(page.get_by_role("dialog")).to_contain_text("See what is free")

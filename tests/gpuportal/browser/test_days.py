"""Fields of a day, a month and a time read the same in every browser and language."""

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.pages import check_themes, violations
from tests.reservations.browser.ground import Lab, page_of

pytestmark = pytest.mark.django_db(transaction=True)
SIZES = [{"width": 1440, "height": 900}, {"width": 390, "height": 844}]


@pytest.fixture
def lab(live_asgi: str) -> Lab:
    return Lab()


def named(day: str) -> re.Pattern[str]:
    """Match the full name of a day: "Tuesday 1 December 2026"."""
    return re.compile(rf"^\w+,? {day}$")


def picture(page: Page, name: str) -> None:
    if folder := os.environ.get("PICTURES"):
        page.screenshot(path=Path(folder) / f"{name}.png")


@pytest.mark.parametrize("size", SIZES, ids=["desk", "phone"])
def test_a_day_is_typed_or_chosen_by_keys_and_by_hand(browser, live_asgi, lab, size):
    alices = page_of(
        browser,
        live_asgi,
        lab.people["alice"],
        viewport=size,
        timezone_id="America/New_York",
    )
    with alices as page:
        page.goto("/calendar/?date=2026-11-24")
        expect(page.locator("#toolbar")).to_have_attribute("data-live", "open")
        field = page.get_by_label("Go to a day", exact=True)
        expect(field).to_have_value("2026-11-24")
        field.fill("3.12.2026")
        field.press("Enter")
        expect(field).to_have_value("2026-12-03")
        expect(page).to_have_url(re.compile("date=2026-12-03"))
        field.press("ArrowDown")
        expect(field).to_have_value("2026-12-02")
        field.fill("31.2.2026")
        field.press("Tab")
        expect(page.get_by_text("Write the day as year-month-day")).to_be_visible()
        assert "date=2026-12-02" in page.url
        field.fill("20261203")
        field.press("Enter")
        expect(page.get_by_text("Write the day as year-month-day")).to_be_hidden()
        opener = page.get_by_role("button", name="Go to a day: choose a day")
        opener.press("Enter")
        picker = page.get_by_role("dialog", name="Choose a day")
        expect(
            picker.get_by_role("gridcell", name=named("3 December 2026"))
        ).to_be_focused()
        check_themes(page)
        picture(page, f"day-{size['width']}")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("PageUp")
        expect(
            picker.get_by_role("gridcell", name=named("10 November 2026"))
        ).to_be_focused()
        page.keyboard.press("Enter")
        expect(picker).to_have_count(0)
        expect(opener).to_be_focused()
        expect(field).to_have_value("2026-11-10")
        opener.click()
        picker.get_by_role("button", name="Next month").click()
        picker.get_by_role("gridcell", name=named("1 December 2026")).click()
        expect(page).to_have_url(re.compile("date=2026-12-01"))
        opener.click()
        page.keyboard.press("Escape")
        expect(opener).to_be_focused()


def test_a_month_and_a_time_are_text_too(browser, live_asgi, lab):
    with page_of(browser, live_asgi, lab.people["omar"]) as page:
        page.goto("/manage/reports/")
        month = page.get_by_label("From", exact=True)
        month.fill("202610")
        month.press("Tab")
        expect(month).to_have_value("2026-10")
        page.get_by_role("button", name="From: choose a month").click()
        picker = page.get_by_role("dialog", name="Choose a month")
        picture(page, "month")
        assert violations(page) == []
        picker.get_by_role("gridcell", name=re.compile("^Sep")).click()
        expect(month).to_have_value("2026-09")
        page.goto("/me/notices/")
        time = page.locator("#id_quiet_from")
        time.fill("930")
        time.press("Tab")
        expect(time).to_have_value("09:30")
        time.fill("25:00")
        time.press("Tab")
        expect(page.get_by_text("Use 24 hours, for example 14:30.")).to_be_visible()

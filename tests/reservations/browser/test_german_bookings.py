"""The reservations' pages in German: forms post, nothing breaks, no English is left."""

import os
import re
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.test import Client
from django.utils import timezone
from playwright.sync_api import ConsoleMessage, Page, expect

from reservations.models import Closure, Notice, Offer, Series, WaitingRequest
from tests.factories import make_reservation
from tests.german import left_in_english
from tests.pages import fits, no_native_days, violations
from tests.reservations.browser.ground import Lab, page_of

pytestmark = pytest.mark.django_db(transaction=True)
MACHINES = (
    *("pools/", "gpus/", "gpus/replace/", "closures/", "closures/new/", "courses/"),
    *("courses/new/",),
)
RULES = (
    "accounts/import/",
    "policy/booking/",
    "policy/telemetry/",
    "reports/",
    "replay/",
)
"""The operator's pages below /manage/, in two walks."""
SIZES = [
    ("light", {"width": 1440, "height": 900}),
    ("dark", {"width": 390, "height": 844}),
]
"""A desk and a phone. Buttons are pressed on the phone."""
BOTH = ("light", "dark")
SEEN = {
    # test_calendar_looks.py
    "/calendar/": BOTH,
    "/standing/": BOTH,
    # test_desk.py
    "/manage/closures/": BOTH,
    "/manage/closures/new/": BOTH,
    "/manage/gpus/": BOTH,
    "/manage/gpus/replace/": BOTH,
    "/manage/policy/booking/": BOTH,
    "/manage/policy/telemetry/": BOTH,
    "/manage/pools/": BOTH,
    "/manage/pools/N/": BOTH,
    # tests/flows/test_weeks.py, on both screens
    "/manage/accounts/": BOTH,
    "/manage/accounts/changes/": BOTH,
    "/manage/accounts/draft/": BOTH,
    # tests/flows/test_weeks.py, on a desktop
    "/manage/replay/": ("light",),
    "/manage/reports/": ("light",),
    "/notices/": ("light",),
    "/waiting/": ("light",),
}
"""Pages on which axe looks in English, in which of the `SIZES`, and the test that
does so. Another language changes none of what axe judges."""


@pytest.fixture
def lab(live_asgi: str) -> Lab:
    """Return a lab whose people read German, with one of everything on their pages."""
    lab = Lab()
    for user in lab.people.values():
        user.language = "de"
        user.email = f"{user.username}@example.org"
        user.save()
    alice = lab.people["alice"]
    lab.running = make_reservation(
        alice,
        lab.gpus[:2],
        timezone.now() - timedelta(minutes=30),
        timezone.now() + timedelta(hours=3),
        state="active",
        purpose="Ablation",
    )
    lab.flex = lab.hold("alice", [2], 9, 12, kind="flex")
    lab.given = lab.hold("bob", [3], 9, 11)
    Notice.objects.create(user=alice, kind="released", told_at=timezone.now())
    Closure.objects.create(
        kind="maintenance",
        scope="node",
        node=lab.gpus[4].node,
        reason="Lüfter",
        start=lab.at(6),
        end=lab.at(8),
        created_by=lab.people["omar"],
    )
    return lab


@pytest.fixture
def open_as(browser, live_asgi, lab):
    """Return what opens a browser of one of the lab's people."""
    return lambda name: page_of(browser, live_asgi, lab.people[name])


def looked_at(page: Page, path: str = "") -> None:
    """Open a page: German, and no console error. At a desk and on a phone nothing
    sticks out, and axe finds nothing on pages that it does not see in English.
    """
    errors: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        if message.type == "error":
            errors.append(message.text)

    page.on("console", heard)
    if path:
        page.goto(path)
    page.wait_for_load_state("networkidle")
    expect(page.locator("h2:empty")).to_have_count(0)
    expect(page.locator("html")).to_have_attribute("lang", "de")
    assert left_in_english(page) == [], page.url
    no_native_days(page)
    seen = SEEN.get(re.sub(r"\d+", "N", urlsplit(page.url).path), ())
    for theme, size in SIZES:
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size(size)
        if folder := os.environ.get("PICTURES"):
            name = re.sub(r"\W+", "-", page.url.split("/", 3)[3].split("?")[0])
            file = Path(folder) / f"de-{name}{size['width']}.png"
            page.screenshot(path=file, full_page=True)
        fits(page)
        if theme not in seen:
            assert violations(page) == [], page.url
    assert errors == []
    page.remove_listener("console", heard)


def test_a_student_books_in_german(open_as, lab):
    with open_as("alice") as page:
        looked_at(page, "/calendar/")
        times = f"start={lab.tomorrow}T14:00&end={lab.tomorrow}T16:00"
        looked_at(page, f"/calendar/?gpus={lab.gpus[0].pk}&{times}")
        page.click("#repeat")
        page.wait_for_url("**/series/new/**")
        page.fill("#times", "3")
        page.select_option("#repeat", "daily")
        looked_at(page)
        page.click("main form button[type=submit]")
        expect(page.locator("#day-rows tr")).to_have_count(3)
        page.click("#save")
        page.wait_for_url(re.compile(r"/series/\d+/"))
        expect(page.locator("tbody tr")).to_have_count(3)
        looked_at(page)
        assert Series.objects.count() == 1
        looked_at(page, "/series/")
        looked_at(page, "/series/?state=ended")


def test_a_student_offers_a_booking_in_german(open_as, lab):
    with open_as("alice") as page:
        looked_at(page, f"/reservations/{lab.running.pk}/")
        looked_at(page, f"/reservations/{lab.flex.pk}/")
        page.locator("#offer-to").evaluate(
            "node => node.closest('details').open = true"
        )
        page.fill("#offer-to", "carol")
        page.locator("#offer-to").press("Enter")
        expect(page.locator("main")).to_contain_text("Carol angeboten")
        assert Offer.objects.get().state == "open"
        looked_at(page)
        for path in ("/offers/", "/offers/?state=declined"):
            looked_at(page, path)


def test_a_student_waits_in_german(open_as, lab):
    with open_as("alice") as page:
        looked_at(page, "/waiting/")
        page.fill("#wait-hours", "1.5")
        page.click("#wait-form button[type=submit]")
        expect(page.locator(".wait")).to_have_count(1)
        assert WaitingRequest.objects.get().duration_seconds == 5400
        looked_at(page)
        for path in ("/standing/", "/notices/", "/notices/?unread=on", "/me/notices/"):
            looked_at(page, path)


def test_an_admin_changes_groups_in_german(open_as, lab):
    account = lab.people["alice"].memberships.get().account_id
    with open_as("omar") as page:
        looked_at(page, f"/manage/accounts/?account={account}")
        page.locator("[name$='-title']").first.fill("Bildverstehen")
        page.click("#tree-form [name=next][value=preview]")
        page.wait_for_url("**/manage/accounts/draft/")
        expect(page.locator("#reason")).to_be_visible()
        looked_at(page)
        page.fill("#reason", "Neuer Name")
        page.locator("#reason").press("Enter")
        page.wait_for_url("**/manage/accounts/changes/**")
        looked_at(page)
        page.locator("tbody th a").first.click()
        page.wait_for_url(re.compile(r"/changes/\d+/"))
        looked_at(page)


def test_an_admin_sees_the_machines_in_german(open_as, lab):
    with open_as("omar") as page:
        for path in MACHINES:
            looked_at(page, f"/manage/{path}")


def test_an_admin_changes_a_pool_and_the_rules_in_german(open_as, lab):
    pool = lab.gpus[0].pool_id
    account = lab.people["alice"].memberships.get().account_id
    client = Client()
    client.force_login(lab.people["omar"])
    client.post(
        f"/manage/pools/{pool}/quota/",
        {"account": account, "quota_gpu_seconds": "90", "reason": "Kurs"},
    )
    with open_as("omar") as page:
        for path in (*RULES, f"pools/{pool}/"):
            looked_at(page, f"/manage/{path}")


def test_the_pages_of_a_group_are_read_in_german(open_as, lab):
    account = lab.people["alice"].memberships.get().account_id
    with open_as("omar") as page:
        looked_at(page, f"/standing/?account={account}")
        looked_at(page, f"/group/?account={account}")
        looked_at(page, f"/group/{account}/report/")

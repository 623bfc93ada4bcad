"""The frame of every page on a phone: menus that fold, one line of messages,
filters.
"""

import os
import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from placement.models import Job
from reservations.rules.lifecycle import State
from telemetry.models import Node
from telemetry.protocol.gpu_state import GpuState
from tests.factories import (
    make_account,
    make_membership,
    make_reservation,
    make_user,
)
from tests.pages import check_themes, eventually, fits

pytestmark = pytest.mark.django_db(transaction=True)
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1440, "height": 900}


def picture(page: Page, name: str) -> None:
    if folder := os.environ.get("PICTURES"):
        page.screenshot(path=Path(folder) / f"{name}.png")


def test_the_menu_leads_to_every_page_and_names_the_one_that_is_open(
    page, live_asgi, sign_in, live_cluster
):
    sign_in(make_user("omar", is_staff=True, is_superuser=True))
    page.set_viewport_size(PHONE)
    page.goto(live_asgi + "/standing/")
    nav = page.get_by_role("navigation", name="Main", exact=True)
    expect(nav).to_be_hidden()
    button = page.get_by_role("button", name="Menu", exact=True)
    button.press("Enter")
    expect(nav.get_by_role("link")).to_have_count(7)
    expect(nav.locator("[aria-current=page]")).to_be_focused()
    expect(nav.locator("[aria-current=page]")).to_have_text("Standing")
    page.keyboard.press("ArrowDown")
    expect(nav.get_by_role("link", name="Manage")).to_be_focused()
    check_themes(page)
    fits(page)
    picture(page, "menu")
    page.keyboard.press("Escape")
    expect(button).to_be_focused()
    expect(nav).to_be_hidden()
    button.click()
    nav.get_by_role("link", name="Manage").click()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    tabs = page.get_by_role("navigation", name="Manage", exact=True)
    chooser = page.get_by_role("button", name="Today", exact=True)
    chooser.click()
    for link in tabs.get_by_role("link").all():
        expect(link).to_be_in_viewport(ratio=1)
    check_themes(page)
    fits(page)
    picture(page, "manage")
    tabs.get_by_role("link", name="Audit log").click()
    expect(page.get_by_role("button", name="Audit log", exact=True)).to_be_visible()
    expect(tabs).to_be_hidden()
    fits(page)


def test_on_wider_screens_every_entry_is_in_sight(
    page, live_asgi, sign_in, live_cluster, subtests: pytest.Subtests
):
    sign_in(make_user("omar", is_staff=True, is_superuser=True))
    for width in (641, 800, 1440):
        with subtests.test(width=width):
            page.set_viewport_size({"width": width, "height": 900})
            page.goto(live_asgi + "/manage/audit/")
            menu = page.get_by_role("button", name="Menu", exact=True)
            expect(menu).to_be_hidden()
            for name in ("Main", "Manage"):
                nav = page.get_by_role("navigation", name=name, exact=True)
                for link in nav.get_by_role("link").all():
                    expect(link).to_be_in_viewport(ratio=1)
            picture(page, f"wide-{width}")
            fits(page)


def test_a_menu_left_open_folds_when_the_window_grows(
    page, live_asgi, sign_in, live_cluster
):
    sign_in(make_user("alice"))
    page.set_viewport_size(PHONE)
    page.goto(live_asgi + "/help/")
    page.get_by_role("button", name="Menu", exact=True).click()
    page.set_viewport_size(DESK)
    nav = page.get_by_role("navigation", name="Main", exact=True)
    expect(page.locator("#main-nav:popover-open")).to_have_count(0)
    expect(nav.get_by_role("link", name="Board")).to_be_visible()


def test_messages_take_one_line_until_they_are_opened(
    page, live_asgi, sign_in, live_cluster, axe
):
    Node.objects.update(simulated=True, isolation=Node.Isolation.NONE)
    sign_in(make_user("alice"))
    page.set_viewport_size(PHONE)
    page.goto(live_asgi + "/help/")
    aside = page.locator("#banners")
    more = page.get_by_role("button", name="Show all messages in full")
    expect(more).to_have_attribute("aria-expanded", "false")
    eventually(page, lambda: aside.bounding_box()["height"] < 40)
    axe()
    picture(page, "banner-folded")
    more.click()
    expect(page.locator("#isolation-banner")).to_be_visible()
    axe()
    picture(page, "banner-open")
    more.click()
    expect(page.locator("#isolation-banner")).to_be_hidden()
    page.set_viewport_size(DESK)
    expect(page.locator("#isolation-banner")).to_be_visible()
    expect(more).to_be_hidden()
    picture(page, "banner-wide")


def test_a_list_of_what_is_over_needs_no_scrolling_sideways(
    page, live_asgi, sign_in, live_cluster, subtests: pytest.Subtests
):
    alice = make_user("alice")
    make_membership(alice, make_account("vision"))
    end = timezone.now() - timedelta(days=2, minutes=7)
    for purpose, state in (("", State.CANCELLED), ("a second run", State.RELEASED)):
        row = make_reservation(
            alice, live_cluster.gpus[4:], end - timedelta(hours=90), end, state=state
        )
        row.purpose = purpose
        row.save()
        Job.objects.create(
            reservation=row,
            owner=alice,
            node=live_cluster.gpus[4].node,
            name="pre-training, stage 2",
            kind="recipe",
            recipe="burn-in",
            attempt=1,
            state="failed",
            ordered_at=end,
            started_at=end - timedelta(hours=89, minutes=30),
            ended_at=end,
        )
    sign_in(alice)
    page.set_viewport_size(PHONE)
    for name, address in (("Past reservations", "/mine/"), ("Jobs", "/jobs/")):
        with subtests.test(name):
            page.goto(live_asgi + address)
            region = page.get_by_role("region", name=name, exact=True)
            expect(region.get_by_role("row").nth(1)).to_be_visible()
            picture(page, name)
            assert region.evaluate("(node) => node.scrollWidth <= node.clientWidth")
            expect(page.get_by_role("button", name="Compare")).to_be_hidden()


def test_the_tour_s_card_keeps_its_sentence_readable(
    page, live_asgi, sign_in, live_cluster
):
    sign_in(make_user("alice"))
    page.set_viewport_size(PHONE)
    page.goto(live_asgi + "/mine/")
    words = page.locator("[data-tour-card] p").bounding_box()
    assert words
    assert words["width"] > 220
    picture(page, "tour-card")


def test_the_first_gpu_is_in_sight_and_the_filters_open(
    page, live_asgi, sign_in, live_cluster
):
    Node.objects.update(simulated=True, isolation=Node.Isolation.NONE)
    sign_in(make_user("alice"))
    page.set_viewport_size(PHONE)
    page.goto(live_asgi + "/")
    states = ("BUSY", "IDLE", "INTRUDER", "SQUATTER", "LOST")
    for number, state in enumerate(states):
        live_cluster.set(number, state=GpuState[state])
    words = page.locator(".count.state-squatter")
    expect(words).to_be_visible()
    expect(words).to_have_accessible_name(re.compile("without a booking"))
    # However many states there are, the counters take one line.
    # Those that came a second ago may still be on their way.
    # (The policy of the page forbids what wait_for_function does.)
    counts = page.locator("#counts")
    eventually(page, lambda: counts.bounding_box()["height"] < 75)
    first = page.locator(".gpu:not(.gpu-ghost)").first
    expect(first).to_be_in_viewport(ratio=0.9)
    picture(page, "board")
    button = page.get_by_role("button", name="Filter", exact=True)
    expect(page.get_by_label("Filter GPUs by node")).to_be_hidden()
    button.click()
    expect(button).to_have_attribute("aria-expanded", "true")
    page.get_by_label("Class", exact=True).select_option(index=1)
    expect(page.locator("#filters-count")).to_have_text("1")
    check_themes(page)
    fits(page)
    picture(page, "board-filters")
    page.get_by_role("button", name="Filter 1", exact=True).click()
    expect(page.get_by_label("Class", exact=True)).to_be_hidden()
    page.set_viewport_size(DESK)
    expect(page.get_by_label("Class", exact=True)).to_be_visible()
    expect(page.locator("#filters-button")).to_be_hidden()
    picture(page, "board-wide")

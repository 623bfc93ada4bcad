"""A head sets the chat of the group in the browser."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import expect

from reservations.models import GroupChat, Membership
from tests.pages import check_themes, fits
from tests.reservations.browser.ground import Lab, page_of
from tests.reservations.notifications.outside import receiver

pytestmark = pytest.mark.django_db(transaction=True)
LOOKS = [
    ("light", {"width": 1440, "height": 900}),
    ("dark", {"width": 390, "height": 844}),
]


@pytest.mark.parametrize(("theme", "size"), LOOKS, ids=["desk", "phone"])
def test_a_head_saves_tries_and_removes_the_chat(
    browser, live_asgi, settings, theme, size
):
    settings.WEBHOOK_LOOPBACK_HTTP = True
    lab = Lab()
    alice = lab.people["alice"]
    Membership.objects.filter(user=alice).update(is_head=True)
    alices = page_of(browser, live_asgi, alice, viewport=size)
    with receiver() as server, alices as page:
        page.goto("/group/")
        page.get_by_label("Where to").select_option("slack")
        page.get_by_label("Address", exact=True).fill("https://10.0.0.1/x")
        page.get_by_role("button", name="Save chat").click()
        expect(page.get_by_text("cannot call 10.0.0.1")).to_be_visible()
        assert not GroupChat.objects.exists()
        page.wait_for_load_state()
        page.get_by_label("Address", exact=True).fill(server.url)
        page.get_by_role("button", name="Save chat").click()
        expect(
            page.get_by_text("Saved. Send a test message to try it.")
        ).to_be_visible()
        page.get_by_role("button", name="Send a test message").click()
        expect(page.get_by_text("The test message is on its way")).to_be_visible()
        check_themes(page, theme)
        fits(page)
        if folder := os.environ.get("PICTURES"):
            page.locator("#chat-title").scroll_into_view_if_needed()
            name = f"group-chat-{size['width']}.png"
            page.screenshot(path=Path(folder) / name)
        page.get_by_role("button", name="Remove", exact=True).last.click()
        expect(page.get_by_text("Removed.", exact=True)).to_be_visible()
        assert not GroupChat.objects.exists()

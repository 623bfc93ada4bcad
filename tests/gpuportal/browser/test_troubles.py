"""Operators' messages while the portal cannot work: on a phone and in the dark too."""

import pytest
from playwright.sync_api import expect

from gpuportal import ticks
from tests.house.walk import ROOT

pytestmark = pytest.mark.browser


def test_the_banner_is_readable_everywhere(page, sign_in, omar, axe, live_asgi):
    ticks.broker().delete(ticks.KEY)
    sign_in(omar)
    page.goto(f"{live_asgi}/")
    banner = page.locator("#troubles-banner")
    expect(banner).to_contain_text("The portal's periodic tasks are late")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": 360, "height": 740})
        expect(banner).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        axe()


def test_the_page_of_a_stopped_portal_is_readable(page):
    page.set_viewport_size({"width": 360, "height": 740})
    page.set_content((ROOT / "deploy/pages/stopped.html").read_text())
    expect(page.get_by_role("heading")).to_have_text(
        "GPU Portal will be back in a moment"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 360

"""Charts of the past: zoom, address, table, sheet; and when the cluster is free."""

import re
from datetime import timedelta

import pytest
from django.core.cache import cache
from django.utils import timezone
from playwright.sync_api import Page, expect

from reservations import tick
from telemetry.history.hourly_rollup import roll_hours
from tests.factories import make_reservation
from tests.gpuportal.browser.conftest import LiveCluster
from tests.gpuportal.browser.test_gpu_page import store_day
from tests.pages import check_looks, fits

HOUR = timedelta(hours=1)


@pytest.fixture
def held(page: Page, live_asgi: str, live_cluster: LiveCluster, alice, sign_in):
    """Alice held the first Gpu for three hours, which are over."""
    gpu = live_cluster.gpus[0]
    store_day(gpu.pk)
    now = timezone.now()
    end = now.replace(minute=0, second=0, microsecond=0) - HOUR
    made = make_reservation(alice, [gpu], end - 3 * HOUR, end, state="ended")
    roll_hours(now=now)
    tick.tick(now)
    cache.clear()

    def go(path: str) -> None:
        sign_in(alice)
        page.goto(live_asgi + path.format(reservation=made.pk, gpu=gpu.pk))

    return go


def test_dragging_looks_closer_and_the_address_leads_back(page: Page, held):
    held("/gpus/{gpu}/")
    charts = page.locator(".history-chart canvas")
    expect(charts).to_have_count(4)
    pressed = page.locator('[data-history="ranges"] [aria-pressed="true"]')
    expect(pressed).to_have_text("24 h")
    over = page.locator(".history-chart .u-over").first
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    with page.expect_response(re.compile(r"history\?from=")) as found:
        # Each waits till the chart stays where it is.
        over.hover(position={"x": box["width"] * 0.8, "y": 60})
        page.mouse.down()
        over.hover(position={"x": box["width"] * 0.85, "y": 60})
        over.hover(position={"x": box["width"] * 0.9, "y": 60})
        page.mouse.up()
    closer = found.value.json()
    assert 2 * 3600 < closer["end"] - closer["start"] < 3 * 3600
    assert closer["series"]["step_seconds"] == 60
    expect(pressed).to_have_count(0)
    expect(page).to_have_url(re.compile(r"\?from=\d+&to=\d+"))
    page.reload()
    expect(charts).to_have_count(4)
    expect(pressed).to_have_count(0)
    page.get_by_role("button", name="Half a view earlier").click()
    page.get_by_role("button", name="Reset").click()
    expect(pressed).to_have_text("24 h")
    page.go_back()
    expect(pressed).to_have_count(0)


def test_ranges_by_keyboard_a_table_and_a_sheet(page: Page, held):
    held("/nodes/node-a/history/")
    page.locator('[data-history="ranges"] button').first.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator('[aria-pressed="true"]')).to_have_text("6 h")
    expect(page).to_have_url(re.compile(r"\?range=6h$"))
    page.locator("summary", has_text="Show as table").click()
    rows = page.locator(".history-table tbody tr")
    expect(rows.first).to_be_visible()
    assert 10 < rows.count() <= 49
    with page.expect_download() as found:
        page.get_by_role("link", name="CSV").click()
    assert found.value.suggested_filename == "history-node-a.csv"


def test_a_time_without_a_reading_says_so(page: Page, held):
    held("/gpus/{gpu}/?from=1000000000&to=1000003600")
    expect(page.locator('[data-history="empty"]')).to_contain_text("no readings")
    expect(page.locator(".history-chart")).to_have_count(0)


def test_it_is_accessible_and_fits(page: Page, held):
    held("/reservations/{reservation}/")
    expect(page.locator(".history-chart canvas")).to_have_count(4)
    expect(page.get_by_role("heading", name="Usage")).to_be_visible()
    page.locator("summary", has_text="Show as table").click()
    expect(page.locator(".history-table")).to_be_visible()
    check_looks(page)
    held("/free/")
    expect(page.locator("td.heat")).to_have_count(168)
    check_looks(page)


def test_a_node_is_drawn_with_one_line_per_gpu(
    page: Page, live_cluster: LiveCluster, held, axe
):
    for gpu in live_cluster.gpus[1:]:
        store_day(gpu.pk)
    held("/nodes/node-a/history/")
    legend = page.locator(".history-chart").first.locator(".u-legend")
    expect(legend).to_contain_text("mean")
    with page.expect_response(
        re.compile(rf"/gpus/{live_cluster.gpus[1].pk}/history\?from=")
    ):
        page.get_by_label("One line per GPU").check()
    for gpu in live_cluster.gpus:
        if gpu.node == live_cluster.gpus[0].node:
            expect(legend).to_contain_text(f"GPU {gpu.index}")
    expect(legend).not_to_contain_text("mean")
    axe()
    page.reload()
    expect(page.get_by_label("One line per GPU")).to_be_checked()
    expect(legend).to_contain_text("GPU 1")
    page.get_by_label("One line per GPU").uncheck()
    expect(legend).to_contain_text("mean")
    page.set_viewport_size({"width": 360, "height": 800})
    fits(page)

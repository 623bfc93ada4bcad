"""The corridor wall: legible on a large site too."""

import json
import re
import time
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from gpuportal.board.wall_consumer import WallConsumer
from reservations.models import WallLink
from telemetry.live import broadcast
from telemetry.protocol.frame import LAYOUT, Frame, FrameRow, encode
from telemetry.protocol.gpu_state import GpuState
from tests.factories import make_reservation
from tests.gpuportal.browser.conftest import GIB
from tests.pages import check_looks, violations


def publish_site(redis_client, count: int) -> None:
    """A roster and one frame of so many Gpus, without rows in the database."""
    gpus = [
        {
            "id": i + 1,
            "uuid": f"GPU-{i}",
            "node": f"node-{i // 8:03}",
            "index": i % 8,
            "name": "H100",
            "gpu_class": "H100-SXM5-80GB",
            "memory_total_bytes": 80 * GIB,
            "power_limit_watts": 700.0,
            "slowdown_celsius": 90.0,
            "sm_clock_max_mhz": 1980,
            "simulated": True,
        }
        for i in range(count)
    ]
    row = FrameRow(state=GpuState.BUSY, util_pct=50, age_seconds=0.3)
    with redis_client.pipeline() as pipe:
        roster = {"roster_id": 9, "layout": LAYOUT, "gpus": gpus}
        broadcast.publish_roster(pipe, json.dumps(roster).encode())
        broadcast.publish_frame(pipe, encode(Frame(9, time.time(), (row,) * count)))
        pipe.execute()


@pytest.fixture
def thousand(page: Page, live_asgi: str, alice, sign_in, redis_client) -> Page:
    """Alice looks at a site of a thousand Gpus."""
    publish_site(redis_client, 1000)
    sign_in(alice)
    page.set_viewport_size({"width": 1440, "height": 900})
    return page


def test_a_thousand_cards_are_built_only_where_one_looks(thousand: Page, live_asgi):
    thousand.goto(live_asgi)
    expect(thousand.get_by_role("button", name="1000 busy")).to_be_visible()
    expect(thousand.locator(".gpu")).to_have_count(1000)
    built = thousand.locator(".gpu-util")
    expect(built.nth(3)).to_be_attached()
    assert built.count() < 150


def test_more_tiles_than_are_legible_take_turns(thousand: Page, live_asgi):
    thousand.goto(f"{live_asgi}/?view=wall")
    tiles = thousand.locator(".tile")
    expect(tiles.first).to_be_visible()
    shown = tiles.count()
    assert 12 <= shown < 60
    turn = thousand.locator("#wall-page")
    # A slow start takes a part of the ten seconds of the first page.
    expect(turn).to_have_text(re.compile(r"^[12] of \d+$"))
    expect(turn).to_have_text(re.compile(r"^[2-9] of \d+$"))
    expect(thousand.locator(".tile-name").first).not_to_have_text("node-000:0")
    turn.click()
    expect(turn).to_have_text(re.compile(r"^[2-9] of \d+, paused$"))


def test_tiles_fill_the_box_and_pages_hold_what_is_legible(
    page, live_asgi, alice, sign_in
):
    sign_in(alice)
    page.goto(f"{live_asgi}/me/")
    found = page.evaluate(
        """async () => {
          const { bestColumns, capacity } = await import("/static/js/board/wall.js");
          return [bestColumns(12, 1800, 900).columns, bestColumns(1, 900, 900).columns,
                  capacity(1800, 900), capacity(100, 100)];
        }"""
    )
    assert found == [4, 1, 48, 1]


def test_a_screen_shows_the_wall_by_a_link_until_it_is_revoked(
    page: Page,
    live_asgi: str,
    live_cluster,
    alice,
    bob,
    omar,
    sign_in,
    context,
    monkeypatch,
):
    monkeypatch.setattr(WallConsumer, "recheck_seconds", 0.5)
    now = timezone.now()
    make_reservation(
        alice, live_cluster.gpus[:1], now, now + timedelta(hours=2), state="active"
    )
    live_cluster.set(0, state=GpuState.BUSY, util_pct=97)
    sign_in(omar)
    page.goto(f"{live_asgi}/manage/walls/")
    page.get_by_label("Where the screen hangs").fill("corridor")
    page.get_by_role("button", name="Make a link").click()
    address = page.get_by_label("Address of the wall").input_value()
    check_looks(page)
    context.clear_cookies()
    page.goto(address)
    tile = page.get_by_role("article", name="GPU node-a:0")
    expect(tile).to_contain_text("97 %")
    expect(tile).to_contain_text("Vision until")
    expect(page.get_by_text("Alice")).to_have_count(0)
    expect(page.locator("#live")).to_contain_text("live")
    assert violations(page) == []
    WallLink.objects.update(names=True)
    page.reload()
    expect(tile).to_contain_text("Alice, Vision until")
    WallLink.objects.update(revoked_at=timezone.now())
    # The next look at the link closes the socket; the page says why.
    expect(page.get_by_text("This link was revoked.")).to_be_visible()
    expect(tile).to_have_count(0)

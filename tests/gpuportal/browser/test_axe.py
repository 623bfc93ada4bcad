"""axe-core finds nothing on gpuportal's pages: light, dark, and on a phone."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from reservations.accounts.api_tokens import create_token
from telemetry.models import Alert
from telemetry.protocol.gpu_state import GpuState
from tests.factories import make_reservation
from tests.gpuportal.browser.conftest import LiveCluster
from tests.pages import DESKTOP, PHONE, check_looks, check_themes


def show_every_state(live_cluster: LiveCluster, alice, bob) -> None:
    """One Gpu in each kind of trouble, some bookings, an open alert."""
    now = timezone.now()
    states = [
        GpuState.BUSY,
        GpuState.INTRUDER,
        GpuState.IDLE,
        GpuState.FREE,
        GpuState.THROTTLED,
        GpuState.LOST,
    ]
    for i, state in enumerate(states):
        live_cluster.set(i, state=state, util_pct=97 - 15 * i)
    make_reservation(
        alice, live_cluster.gpus[:1], now, now + timedelta(hours=2), state="active"
    )
    held = make_reservation(
        bob, live_cluster.gpus[1:2], now, now + timedelta(hours=30), state="active"
    )
    Alert.objects.create(
        rule="intruder",
        gpu=live_cluster.gpus[1],
        reservation_id=held.pk,
        opened_at=now,
        last_seen_at=now,
    )
    live_cluster.send_frame()


def test_the_login_page(page: Page, live_asgi: str, console):
    page.goto(f"{live_asgi}/login/")
    check_looks(page)


@pytest.mark.parametrize("view", ["cards", "table", "wall"])
def test_the_board(
    page: Page,
    live_asgi: str,
    live_cluster: LiveCluster,
    alice,
    bob,
    sign_in: Callable[..., None],
    view,
):
    show_every_state(live_cluster, alice, bob)
    sign_in(alice)
    page.goto(f"{live_asgi}/?view={view}")
    expect(page.locator("#live")).to_contain_text("live")
    expect(
        page.locator("#gpus").get_by_text("someone else’s process", exact=True)
    ).to_be_visible()
    check_looks(page)


@pytest.mark.parametrize(("theme", "size"), [("light", DESKTOP), ("dark", PHONE)])
def test_the_menus_of_the_top_bar(
    page: Page,
    live_asgi: str,
    live_cluster: LiveCluster,
    alice,
    bob,
    sign_in,
    theme,
    size,
):
    show_every_state(live_cluster, alice, bob)
    sign_in(bob)
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.goto(f"{live_asgi}/me/")
    for name in ("1 open alert", "Theme", "Bob: account menu"):
        page.get_by_role("button", name=name).click()
        expect(page.locator(".menu:popover-open")).to_be_visible()
        check_themes(page, theme)
        page.keyboard.press("Escape")
    page.locator("#search").fill("node")
    expect(page.locator("#search-hits a").first).to_be_visible()
    check_themes(page, theme)


def test_settings_with_tokens(page, live_asgi, alice, sign_in):
    create_token(
        user=alice, label="nightly", scopes=["read"], days=30, now=timezone.now()
    )
    sign_in(alice)
    page.goto(f"{live_asgi}/me/")
    check_looks(page)
    page.get_by_role("button", name="Revoke nightly").click()
    expect(
        page.get_by_role("heading", name="Revoke the token “nightly”?")
    ).to_be_visible()
    check_looks(page)


def test_search_and_a_wrong_address(page, live_asgi, live_cluster, alice, sign_in):
    sign_in(alice)
    for address in ("/search", "/search?q=node-a", "/search?q=zzz"):
        page.goto(live_asgi + address)
        check_looks(page)


def test_a_board_without_a_node(page, live_asgi, alice, sign_in):
    sign_in(alice)
    page.goto(live_asgi)
    expect(page.get_by_text("No node is enrolled")).to_be_visible()
    check_looks(page)

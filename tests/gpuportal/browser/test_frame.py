"""The page's frame by keyboard: search, menus, theme, settings; and the admin."""

import re

import pytest
from django.contrib.sessions.models import Session
from playwright.sync_api import Page, expect

from reservations.models import ApiToken, SitePolicy
from telemetry.models import Gpu
from telemetry.protocol import units
from tests.factories import PASSWORD, make_gpus, make_node
from tests.pages import hold_back


def test_alice_signs_in_and_out_by_keyboard(page: Page, live_asgi: str, alice, console):
    page.goto(f"{live_asgi}/me/")
    expect(page.get_by_label("User name")).to_be_focused()
    page.keyboard.type("alice")
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url("**/me/")
    page.get_by_role("button", name="Alice: account menu").press("Enter")
    expect(page.get_by_role("link", name="Settings and API tokens")).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(page.get_by_role("button", name="Sign out")).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url("**/login/")
    assert not Session.objects.exists()


def test_a_menu_that_is_opened_before_its_script_is_there_takes_the_focus(
    page: Page, live_asgi: str, sign_in, alice
):
    sign_in(alice)
    let_come = hold_back(page, "bundle/portal-*.js")
    page.goto(f"{live_asgi}/me/", wait_until="commit")
    button = page.get_by_role("button", name="Alice: account menu")
    button.press("Enter")
    first = page.get_by_role("link", name="Settings and API tokens")
    expect(first).to_be_visible()
    let_come()
    expect(first).to_be_focused()
    expect(button).to_have_attribute("aria-expanded", "true")


def test_times_count_from_the_answer_however_late_the_script_comes(
    page: Page, live_asgi: str, sign_in, alice
):
    sign_in(alice)
    let_come = hold_back(page, "bundle/portal-*.js")
    page.goto(f"{live_asgi}/me/", wait_until="commit")
    page.wait_for_timeout(4000)
    let_come()
    page.wait_for_load_state()
    # Portal and browser read one clock here.
    ahead_ms = page.evaluate(
        """async () => {
          const { serverNow } = await import("/static/js/time.js");
          return serverNow() - Date.now();
        }"""
    )
    assert abs(ahead_ms) < 2000


def test_the_page_is_used_by_keyboard(
    page: Page, live_asgi: str, alice, sign_in, subtests: pytest.Subtests
):
    """One browser tells every story, each on a fresh page."""
    gpu = make_gpus(3, make_node("node-a"))[2]
    sign_in(alice)
    stories = {
        "the first Tab skips to the content": the_first_tab_skips_to_the_content,
        "every control shows its focus": every_control_shows_its_focus,
        "a slash in a field stays a slash": a_slash_in_a_field_stays_a_slash,
        "Escape closes the hits": escape_closes_the_hits_and_enter_alone_opens_the_page,
        "/ opens the search": lambda page: a_key_opens_the_search(page, gpu, "/"),
        "Ctrl+K opens it": lambda page: a_key_opens_the_search(page, gpu, "Control+k"),
    }
    for name, tell in stories.items():
        with subtests.test(name):
            page.goto(f"{live_asgi}/me/")
            tell(page)


def the_first_tab_skips_to_the_content(page: Page) -> None:
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()


def every_control_shows_its_focus(page: Page) -> None:
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            """() => { const e = document.activeElement; const s = getComputedStyle(e);
              return [e.tagName + (e.id || e.className || e.name),
                e === document.body ? "body" : s.outlineStyle + s.outlineWidth]; }"""
        )
        if outline == "body":
            break
        seen.add(name)
        assert outline == "solid2px", name
    assert len(seen) >= 12


def a_key_opens_the_search(page: Page, gpu: Gpu, keys: str) -> None:
    page.keyboard.press(keys)
    box = page.locator("#search")
    expect(box).to_be_focused()
    page.keyboard.type("node-a:2")
    expect(page.get_by_role("option", name=re.compile("node-a:2"))).to_be_visible()
    expect(box).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("ArrowDown")
    expect(box).to_have_attribute("aria-activedescendant", "hit-0")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/gpus/{gpu.pk}/")


def a_slash_in_a_field_stays_a_slash(page: Page) -> None:
    field = page.get_by_label("What it is for")
    field.press("/")
    expect(field).to_have_value("/")


def escape_closes_the_hits_and_enter_alone_opens_the_page(page: Page) -> None:
    page.keyboard.press("/")
    page.keyboard.type("zzz")
    expect(page.locator("#search-hits")).to_contain_text("Nothing found")
    page.keyboard.press("Escape")
    expect(page.locator("#search-hits")).to_be_hidden()
    page.keyboard.press("Enter")
    page.wait_for_url("**/search?q=zzz")
    expect(page.get_by_role("heading", name="Nothing found for “zzz”")).to_be_visible()


# --- theme ------------------------------------------------------------------------


def test_the_chosen_theme_stays_and_does_not_flash(page, live_asgi, alice, sign_in):
    sign_in(alice)
    page.emulate_media(color_scheme="light")
    page.goto(f"{live_asgi}/me/")
    light = page.evaluate(
        "() => getComputedStyle(document.documentElement).backgroundColor"
    )
    page.get_by_role("button", name="Theme").click()
    page.get_by_role("menuitemradio", name="Dark").click()
    root = page.locator("html")
    expect(root).to_have_attribute("data-theme", "dark")
    dark = page.evaluate(
        "() => getComputedStyle(document.documentElement).backgroundColor"
    )
    assert dark != light
    expect(page.get_by_role("radio", name="Dark")).to_be_checked()
    answer = page.reload()
    assert 'data-theme="dark"' in answer.text()
    page.get_by_role("radio", name="System").check()
    expect(root).not_to_have_attribute("data-theme", "dark")
    assert "data-theme=" not in page.reload().text().split(">", 2)[1]


def test_the_system_decides_where_nothing_was_chosen(page, live_asgi, alice, sign_in):
    sign_in(alice)
    colours = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.goto(f"{live_asgi}/me/")
        colours.append(
            page.evaluate(
                "() => getComputedStyle(document.documentElement).backgroundColor"
            )
        )
    assert colours[0] != colours[1]


# --- settings ---------------------------------------------------------------------


def test_a_token_is_made_shown_once_and_revoked(page: Page, live_asgi, alice, sign_in):
    sign_in(alice)
    page.goto(f"{live_asgi}/me/")
    page.get_by_label("What it is for").fill("sweeps")
    page.get_by_label(re.compile("^book:")).check()
    page.get_by_role("button", name="Create token").click()
    text = page.get_by_label("The new token").input_value()
    token = ApiToken.objects.get()
    assert token.token_hash == ApiToken.hash_token(text)
    page.goto(f"{live_asgi}/me/")
    assert text not in page.content()
    revoke = page.get_by_role("button", name="Revoke sweeps")
    revoke.click()
    page.get_by_role("button", name="Keep").click()
    token.refresh_from_db()
    assert token.revoked_at is None
    revoke.click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(page.get_by_text("No token yet")).to_be_visible()
    token.refresh_from_db()
    assert token.revoked_at is not None


# --- the admin --------------------------------------------------------------------


def test_the_admin_works_under_the_strict_policy(
    page, live_asgi, omar, sign_in, subtests: pytest.Subtests
):
    make_gpus(2, make_node("node-a"))
    SitePolicy.current()
    for theme in ("light", "dark"):
        with subtests.test(theme=theme):
            sign_in(omar, theme)
            for address in (
                "/admin/",
                "/admin/reservations/user/",
                f"/admin/reservations/user/{omar.pk}/change/",
                "/admin/reservations/user/add/",
            ):
                answer = page.goto(live_asgi + address)
                assert answer.status == 200, address
            expect(page.locator("html")).to_have_attribute("data-theme", theme)
            page.get_by_role("link", name="GPU Portal").click()
            expect(page.locator("#live")).to_be_visible()


# --- times and figures ----------------------------------------------------------


def test_times_and_figures_in_the_browser_are_those_of_the_server(
    page, live_asgi, alice, sign_in, subtests: pytest.Subtests
):
    sign_in(alice)
    page.goto(f"{live_asgi}/me/")
    with subtests.test("times are relative under a day and named beyond"):
        times_are_relative_under_a_day_and_named_beyond(page)
    with subtests.test("figures"):
        figures_are_those_of_the_server(page)


def times_are_relative_under_a_day_and_named_beyond(page: Page) -> None:
    found = page.evaluate(
        """async () => {
          const time = await import("/static/js/time.js");
          const { relative, clock, absolute, siteZone } = time;
          const now = Date.parse("2026-03-02T14:00:00Z");
          const of = (text) => relative(text, now);
          return {
            zone: siteZone,
            relative: ["2026-03-02T14:00:00Z", "2026-03-02T13:59:48Z",
              "2026-03-02T15:30:00Z", "2026-03-02T23:20:00Z", "2026-03-04T09:00:00Z",
              "2026-04-02T09:00:00Z"].map(of),
            clock: clock("2026-03-03T09:00:00Z", now),
            absolute: absolute("2026-03-02T14:00:00Z"),
          };
        }"""
    )
    assert found["zone"] == "UTC"
    assert found["relative"] == [
        "now",
        "12 s ago",
        "in 1 h 30 min",
        "in 9 h",
        "Wed 09:00",
        "Thu 2 Apr 09:00",
    ]
    assert found["clock"] == "Tue 09:00"
    assert re.fullmatch(r"Mon,? 2 Mar 2026,? 14:00 UTC", found["absolute"])


def figures_are_those_of_the_server(page: Page) -> None:
    sizes = [0, 12, 2**20, 3 * 2**29, 80 * 2**30, 2**41]
    spans = [0, 59, 60, 3900, 7200, 180_000]
    found = page.evaluate(
        """async ([sizes, spans]) => {
          const f = await import("/static/js/format.js");
          return [sizes.map(f.bytes), sizes.map(f.gib), spans.map(f.duration),
                  [f.bytes(null), f.gib(null), f.duration(null)]];
        }""",
        [sizes, spans],
    )
    assert found == [
        [units.format_bytes(size) for size in sizes],
        [units.format_gib(size) for size in sizes],
        [units.format_duration(span) for span in spans],
        [units.UNKNOWN] * 3,
    ]

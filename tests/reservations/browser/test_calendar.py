"""The calendar in a real browser: book, change, cancel, see others do it."""

import re
import time

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect

from reservations.models import Reservation, SitePolicy
from tests.pages import eventually
from tests.reservations.browser.ground import (
    Lab,
    at_rest,
    drag,
    page_of,
    point,
    row,
    set_when,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lab(live_asgi: str) -> Lab:
    return Lab()


def open_day(page: Page, lab: Lab, query: str = "") -> None:
    """Open tomorrow's day view and wait until it is live."""
    page.goto(f"/calendar/?date={lab.tomorrow}{query}")
    expect(page.locator(".row-gpu").first).to_be_visible()
    expect(page.locator("#toolbar")).to_have_attribute("data-live", "open")


OVERLAPS = """(() => {
  const spans = [...document.querySelectorAll(".timeline .ec-header time")]
    .filter((node) => node.textContent.trim())
    .map((node) => {
      const text = document.createRange();
      text.selectNodeContents(node);
      return text.getBoundingClientRect();
    });
  const hit = (a, b) =>
    a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  if (spans.length < 8) return ["the labels are missing"];
  return spans.flatMap((a, i) => spans.slice(i + 1).filter((b) => hit(a, b)))
    .map((box) => [box.left, box.right]);
})()"""


def bar(page: Page, text: str):
    return page.locator(".timeline .bar-face", has_text=text)


def only_reservation() -> Reservation:
    [found] = Reservation.objects.all()
    return found


def gpu_ids(reservation: Reservation) -> list[int]:
    return sorted(reservation.allocations.values_list("gpu_id", flat=True))


def test_dragging_over_free_time_and_one_button_book_it(browser, live_asgi, lab):
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        open_day(page, lab)
        cell = row(page, lab.gpus[1])
        drag(page, point(cell, 10.05), point(cell, 11.95))
        verdict = page.locator("#verdict")
        expect(verdict).to_contain_text("Firm. Nobody can take it from you.")
        expect(verdict).to_contain_text("20 credits")
        expect(page.locator("#start")).to_have_value(f"{lab.tomorrow}T10:00")
        expect(page.locator("#end")).to_have_value(f"{lab.tomorrow}T12:00")
        page.fill("#purpose", "night sweep")
        page.click("#book")
        expect(bar(page, "night sweep")).to_be_visible()
        expect(page.locator("#drawer")).to_be_hidden()
        made = only_reservation()
        assert (made.start, made.end) == (lab.at(10), lab.at(12))
        assert made.purpose == "night sweep"
        assert gpu_ids(made) == [lab.gpus[1].pk]


def test_dragging_across_rows_books_several_gpus_as_one(browser, live_asgi, lab):
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        open_day(page, lab)
        first, last = row(page, lab.gpus[0]), row(page, lab.gpus[2])
        drag(page, point(first, 14.05), point(last, 15.95))
        expect(page.locator("#gpu-count")).to_have_text("3 GPUs")
        expect(page.locator("#verdict")).to_contain_text("Firm")
        page.click("#book")
        expect(bar(page, "You")).to_have_count(3)
        assert gpu_ids(only_reservation()) == [gpu.pk for gpu in lab.gpus[:3]]


def test_one_ghost_shows_times_and_length_while_dragging(browser, live_asgi, lab):
    ghost = ".timeline .ec-preview, .timeline .row-frame"
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        open_day(page, lab)
        rows = [row(page, gpu) for gpu in lab.gpus[:3]]
        page.mouse.move(*point(rows[0], 12.05))
        page.mouse.down()
        shown = page.locator(ghost).filter(visible=True)
        for at, words in (
            (point(rows[0], 13.95), "12:00–14:00, 2 h"),
            (point(rows[2], 15.95), "12:00–16:00, 4 h"),
            (point(rows[1], 14.95), "12:00–15:00, 3 h"),
            (point(rows[0], 14.95), "12:00–15:00, 3 h"),
        ):
            page.mouse.move(*at, steps=5)
            expect(shown).to_have_count(1)
            expect(shown).to_have_text(words)
        page.mouse.up()
        expect(shown).to_have_count(0)
        expect(page.locator("#start")).to_have_value(f"{lab.tomorrow}T12:00")


def test_dragging_ones_own_moves_it_and_undo_moves_it_back(browser, live_asgi, lab):
    own = lab.hold("alice", [0], 10, 12, purpose="mine")
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        open_day(page, lab)
        upper, lower = row(page, lab.gpus[0]), row(page, lab.gpus[1])
        drag(page, point(upper, 11), point(lower, 15))
        expect(page.locator(".toast")).to_contain_text("node-a 1, tomorrow 14:00")
        own.refresh_from_db()
        assert (own.start, own.end) == (lab.at(14), lab.at(16))
        assert gpu_ids(Reservation.objects.get()) == [lab.gpus[1].pk]
        page.get_by_role("button", name="Undo").click()
        expect(page.locator(".toast")).to_have_count(0)
        own.refresh_from_db()
        assert (own.start, own.end) == (lab.at(10), lab.at(12))


def test_dragging_the_end_makes_ones_own_longer(browser, live_asgi, lab):
    own = lab.hold("alice", [0], 10, 12, purpose="mine")
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        open_day(page, lab)
        cell = row(page, lab.gpus[0])
        x, y = point(cell, 12)
        drag(page, (x - 3, y), (point(cell, 14)[0] - 3, y))
        expect(page.locator(".toast")).to_contain_text("10:00 – 14:00")
        own.refresh_from_db()
        assert own.end == lab.at(14)


def test_a_move_onto_somebody_else_is_refused_and_goes_back(browser, live_asgi, lab):
    own = lab.hold("alice", [0], 10, 12, purpose="mine")
    lab.hold("carol", [0], 14, 18)
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        open_day(page, lab)
        cell = row(page, lab.gpus[0])
        drag(page, point(cell, 11), point(cell, 15))
        expect(page.locator("#verdict .notice")).to_contain_text("taken by Carol")
        expect(page.locator("#start")).to_have_value(f"{lab.tomorrow}T14:00")
        page.keyboard.press("Escape")
        expect(page.locator("#drawer")).to_be_hidden()
        # The rows take the drawer's room again.
        own_bar = bar(page, "mine")
        eventually(page, lambda: abs(at_rest(own_bar)["x"] - point(cell, 10)[0]) <= 4)
        own.refresh_from_db()
        assert own.start == lab.at(10)


def test_somebody_elses_cannot_be_dragged(browser, live_asgi, lab):
    other = lab.hold("carol", [0], 10, 12)
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        open_day(page, lab)
        cell = row(page, lab.gpus[0])
        drag(page, point(cell, 11), point(cell, 15))
        page.wait_for_timeout(300)
        other.refresh_from_db()
        assert other.start == lab.at(10)
        expect(page.locator(".toast")).to_have_count(0)


def test_booking_works_by_keyboard_alone(browser, live_asgi, lab):
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        open_day(page, lab)
        page.locator("#new-booking").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#start-day")).to_be_focused()
        set_when(page, "start", f"{lab.tomorrow}T09:00")
        set_when(page, "end", f"{lab.tomorrow}T11:30")
        for _ in range(40):
            if page.evaluate("document.activeElement.name") == "gpu":
                break
            page.keyboard.press("Tab")
        page.keyboard.press("Space")
        expect(page.locator("#gpu-count")).to_have_text("1 GPU")
        page.locator("#more-gpus").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#gpu-count")).to_have_text("2 GPUs")
        page.locator("#purpose").focus()
        page.keyboard.type("by hand")
        expect(page.locator("#verdict")).to_contain_text("Firm")
        page.keyboard.press("Enter")
        expect(bar(page, "by hand")).to_have_count(2)
        made = only_reservation()
        assert (made.start, made.end) == (lab.at(9), lab.at(11, 30))
        # The focus is back where it came from.
        expect(page.locator("#new-booking")).to_be_focused()


def test_arrow_keys_move_between_bars_and_enter_opens_one(browser, live_asgi, lab):
    lab.hold("bob", [0], 9, 10)
    lab.hold("carol", [0], 12, 13)
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        open_day(page, lab)
        page.locator(".ec-main").focus()
        page.keyboard.press("ArrowDown")
        expect(bar(page, "Bob")).to_be_focused()
        page.keyboard.press("ArrowRight")
        expect(bar(page, "Carol")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#details-title")).to_have_text("Carol’s reservation")
        page.keyboard.press("Escape")
        expect(page.locator("#drawer")).to_be_hidden()
        expect(bar(page, "Carol")).to_be_focused()


def test_a_refusal_says_rule_numbers_and_next_slot_and_loses_nothing(
    browser, live_asgi, lab
):
    SitePolicy.objects.update(quota_gpu_seconds=30 * 3600, flex_horizon_seconds=900)
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        open_day(page, lab)
        cell = row(page, lab.gpus[0])
        drag(page, point(cell, 10.05), point(cell, 15.95))
        page.fill("#purpose", "long run")
        notice = page.locator("#verdict .notice")
        expect(notice).to_contain_text("Firm is not possible")
        expect(notice).to_contain_text(
            "would cost 60 credits. Your quota is 30 credits."
        )
        page.click("#book")
        expect(notice).to_contain_text("Firm is not possible")
        expect(page.locator("#purpose")).to_have_value("long run")
        expect(page.locator("#end")).to_have_value(f"{lab.tomorrow}T16:00")
        assert not Reservation.objects.exists()


def test_the_next_slot_of_a_refusal_is_a_button_that_books(browser, live_asgi, lab):
    lab.hold("carol", [0, 1, 2, 3], 10, 14)
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        query = (
            f"&gpu={lab.gpus[0].pk}&start={lab.tomorrow}T10:00&end={lab.tomorrow}T12:00"
        )
        open_day(page, lab, query)
        expect(page.locator("#verdict .notice")).to_contain_text("taken by Carol")
        page.locator(".next-slot").click()
        expect(page.locator("#verdict")).to_contain_text("Firm")
        page.click("#book")
        expect(page.locator("#drawer")).to_be_hidden()
        assert Reservation.objects.filter(user=lab.people["alice"]).count() == 1


def test_another_browser_sees_a_new_reservation_within_a_second(
    browser: Browser, live_asgi, lab
):
    with (
        page_of(browser, live_asgi, lab.people["carol"]) as carols,
        page_of(browser, live_asgi, lab.people["alice"]) as alices,
    ):
        open_day(carols, lab)
        took: list[float] = []
        # A busy machine may delay one of them.
        for start in (10, 13, 16):
            begins, ends = f"{start}:00", f"{start + 2}:00"
            day = lab.tomorrow
            query = f"&start={day}T{begins}&end={day}T{ends}"
            open_day(alices, lab, f"&gpu={lab.gpus[2].pk}{query}")
            expect(alices.locator("#verdict")).to_contain_text("Firm")
            alices.click("#book")
            began = time.monotonic()
            expect(bar(carols, "Alice")).to_have_count(len(took) + 1)
            took.append(time.monotonic() - began)
            when = f"tomorrow {begins} – {ends}, firm"
            expect(bar(carols, "Alice").last).to_have_accessible_name(
                re.compile(f"Alice .*: vision, node-a 2, {when}")
            )
        assert min(took) < 1


def test_a_page_that_was_cut_off_catches_up_when_it_reconnects(browser, live_asgi, lab):
    with page_of(browser, live_asgi, lab.people["carol"]) as page:
        sockets = []

        def relay(socket) -> None:
            sockets.append(socket)
            socket.connect_to_server()

        page.route_web_socket(re.compile(r"/ws/calendar/"), relay)
        open_day(page, lab)
        sockets[-1].close(code=1012)
        lab.hold("alice", [0], 10, 12)
        expect(bar(page, "Alice")).to_be_visible()


def test_a_cancel_can_be_undone(browser, live_asgi, lab):
    own = lab.hold("alice", [0], 10, 12, purpose="mine")
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        open_day(page, lab)
        bar(page, "mine").click()
        page.get_by_role("button", name="Cancel it").click()
        expect(bar(page, "mine")).to_have_count(0)
        own.refresh_from_db()
        assert own.state == "cancelled"
        page.get_by_role("button", name="Undo").click()
        expect(bar(page, "mine")).to_be_visible()
        own.refresh_from_db()
        assert own.state == "confirmed"


def test_find_a_slot_offers_cards_that_fill_the_draft(browser, live_asgi, lab):
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        open_day(page, lab)
        page.click("#open-find")
        page.fill("#find-count", "2")
        page.fill("#find-hours", "3")
        page.select_option("#find-gib", "80")
        set_when(page, "find-earliest", f"{lab.tomorrow}T09:00")
        page.get_by_role("button", name="Find", exact=True).click()
        cards = page.locator(".slot-card")
        expect(cards.first).to_contain_text("2 GPUs, A100 80GB")
        cards.first.click()
        expect(page.locator("#gpu-count")).to_have_text("2 GPUs")
        expect(page.locator("#length")).to_have_text("3 h")


def test_a_plans_booking_goes_on_to_the_launch(browser, live_asgi, lab):
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        page.route(re.compile(r"/jobs/new"), lambda route: route.fulfill(body="launch"))
        query = (
            f"&gpus={lab.gpus[0].pk},{lab.gpus[1].pk}&start={lab.tomorrow}T10:00"
            f"&end={lab.tomorrow}T12:00&purpose=llama&plan=5"
        )
        open_day(page, lab, query)
        expect(page.locator("#verdict")).to_contain_text("Firm")
        page.click("#book")
        page.wait_for_url(re.compile(r"/jobs/new/\?reservation=\d+&plan=5"))
        assert only_reservation().purpose == "llama"


def test_filters_and_views_stay_in_the_address(browser, live_asgi, lab):
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        open_day(page, lab)
        page.select_option("#class", "NVIDIA A30")
        expect(page.locator(".row-group")).to_have_count(1)
        page.get_by_text("Week", exact=True).click()
        expect(page).to_have_url(re.compile("view=week.*class=NVIDIA"))
        page.reload()
        expect(page.locator(".row-group")).to_have_count(1)
        expect(page.locator(".ec-week-view")).to_be_visible()
        page.go_back()
        expect(page.locator(".ec-day-view")).to_be_visible()


def test_the_hours_at_the_top_never_run_into_each_other(browser, live_asgi, lab):
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        open_day(page, lab)
        page.click("#new-booking")
        expect(page.locator("#booking")).to_be_visible()
        for press in (None, "#forth", "#back"):
            if press:
                page.click(press)
            eventually(page, lambda: page.evaluate(OVERLAPS) == [])


def test_closed_gpus_are_striped_and_cannot_be_chosen(browser, live_asgi, lab):
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        open_day(page, lab)
        expect(page.locator(".ec-bg-event.is-closed")).to_have_count(1)
        page.click("#new-booking")
        assert page.locator(f"#gpu-list input[value='{lab.gpus[7].pk}']").is_disabled()


def test_escape_closes_the_drawer_and_the_draft(browser, live_asgi, lab):
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        open_day(page, lab)
        cell = row(page, lab.gpus[1])
        drag(page, point(cell, 10.05), point(cell, 11.95))
        expect(page.locator(".bar-event.is-draft")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#drawer")).to_be_hidden()
        expect(page.locator(".bar-event.is-draft")).to_have_count(0)


@pytest.mark.parametrize("site_zone", ["UTC", "Europe/Berlin", "Asia/Kolkata"])
def test_the_sites_clock_rules_whatever_zone_the_browser_is_in(
    browser, live_asgi, lab, settings, site_zone
):
    settings.TIME_ZONE = site_zone
    lab.hold("bob", [0], 10, 12)
    with page_of(
        browser, live_asgi, lab.people["alice"], timezone_id="America/New_York"
    ) as page:
        open_day(page, lab)
        expect(bar(page, "Bob")).to_have_accessible_name(
            re.compile("tomorrow 10:00 – 12:00")
        )
        cell = row(page, lab.gpus[1])
        drag(page, point(cell, 13.05), point(cell, 14.95))
        expect(page.locator("#start")).to_have_value(f"{lab.tomorrow}T13:00")
        expect(page.locator("#verdict")).to_contain_text("Firm")
        page.click("#book")
        expect(page.locator("#drawer")).to_be_hidden()
        assert Reservation.objects.get(user=lab.people["alice"]).start == lab.at(13)
        page.goto("/calendar/")
        line = page.locator(".ec-bg-event.is-now").first.bounding_box()
        now = timezone.localtime()
        # The day that is today begins at a full hour, six hours ago.
        x, _y = point(row(page, lab.gpus[1]), 6 + now.minute / 60)
        assert line["x"] + line["width"] == pytest.approx(x, abs=4)


def test_walls_and_instants_agree_where_the_clock_jumps(browser, live_asgi, lab):
    """2026 in Berlin: 02:00 to 03:00 on 29 March, 03:00 to 02:00 on 25 October."""
    with page_of(browser, live_asgi, lab.people["alice"]) as page:
        page.goto("/standing/")
        there_and_back = page.evaluate(
            """async () => {
              const zone = await import("/static/js/calendar/zone.js");
              const at = (wall) => zone.fromWall(wall, "Europe/Berlin").toISOString();
              const wall = (at) => zone.toWall(at, "Europe/Berlin");
              return [at("2026-03-29T01:30"), at("2026-03-29T02:30"),
                at("2026-03-29T03:30"), at("2026-10-25T01:30"), at("2026-10-25T02:30"),
                at("2026-10-25T03:30"), wall("2026-03-29T01:00:00Z"),
                wall("2026-10-25T00:30:00Z"), wall("2026-10-25T01:30:00Z"),
                zone.mondayOf("2026-03-29"), zone.ceilWall("2026-03-29T10:01", 900)];
            }"""
        )
        assert there_and_back == [
            "2026-03-29T00:30:00.000Z",
            "2026-03-29T01:30:00.000Z",
            "2026-03-29T01:30:00.000Z",
            "2026-10-24T23:30:00.000Z",
            "2026-10-25T01:30:00.000Z",
            "2026-10-25T02:30:00.000Z",
            "2026-03-29T03:00",
            "2026-10-25T02:30",
            "2026-10-25T02:30",
            "2026-03-23T00:00",
            "2026-03-29T10:15",
        ]

"""Days that roll, 4 days, months, short bars, cards, keys, and drafts that stay."""

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.contrib.sessions.models import Session
from django.utils import timezone
from playwright.sync_api import Page, expect

from reservations import tick
from reservations.models import Closure, Notice, Offer, Reservation, SitePolicy
from reservations.operations.pools import drain_node
from tests.factories import PASSWORD, make_reservation
from tests.pages import eventually, violations
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

DESK = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}


@pytest.fixture
def lab(live_asgi: str) -> Lab:
    return Lab()


def open_calendar(page: Page, query: str = "") -> None:
    page.goto(f"/calendar/{query}")
    expect(page.locator("#toolbar")).to_have_attribute("data-live", "open")


def test_today_begins_six_hours_ago_and_rolls(browser, live_asgi, lab):
    now = timezone.now().replace(second=0, microsecond=0)
    # It begins today and ends after midnight, or the other way round.
    running = make_reservation(
        lab.people["alice"],
        [lab.gpus[0]],
        now - timedelta(hours=5),
        now + timedelta(hours=17),
        state="active",
        purpose="over midnight",
    )
    with page_of(browser, live_asgi, lab.people["alice"], viewport=DESK) as page:
        open_calendar(page)
        cell = at_rest(row(page, lab.gpus[0]))
        line = page.locator(".ec-bg-event.is-now").first.bounding_box()
        assert line is not None
        share = (line["x"] + line["width"] - cell["x"]) / cell["width"]
        assert 0.25 <= share <= 0.25 + 1 / 24 + 0.01
        bar = page.locator(f'[data-reservation="{running.pk}"]').bounding_box()
        assert bar is not None
        assert bar["width"] == pytest.approx(cell["width"] * 22 / 24, rel=0.02)
        assert page.url.endswith("/calendar/")
        # What is dragged over lies where it is shown.
        free = row(page, lab.gpus[1])
        drag(page, point(free, 20.05), point(free, 21.95))
        start = (now - timedelta(hours=6)).replace(minute=0) + timedelta(hours=20)
        wall = timezone.localtime(start).strftime("%Y-%m-%dT%H:%M")
        expect(page.locator("#start")).to_have_value(wall)


def test_four_days_and_a_month_stay_in_the_address(browser, live_asgi, lab):
    lab.hold("alice", [0], 10, 12, purpose="mine")
    with page_of(browser, live_asgi, lab.people["alice"], viewport=DESK) as page:
        open_calendar(page, f"?date={lab.tomorrow}")
        page.get_by_text("4 days", exact=True).click()
        expect(page).to_have_url(
            f"{live_asgi}/calendar/?view=4days&date={lab.tomorrow}"
        )
        expect(page.locator(".ec-col-head")).to_have_count(4)
        expect(page.locator(".bar-face", has_text="mine")).to_be_visible()
        page.get_by_text("Month", exact=True).click()
        expect(page).to_have_url(
            f"{live_asgi}/calendar/?view=month&date={lab.tomorrow}"
        )
        expect(page.locator(".month-day")).to_have_count(42)
        # 7 GPUs can be booked, one of them is held for 2 of 24 h.
        day = page.locator(".month-day", has_text="10:00 mine")
        expect(day.locator(".month-free")).to_have_text("99 % free")
        assert violations(page) == []
        page.reload()
        page.locator(".month-own").click()
        expect(page.locator("#details-title")).to_have_text("Your reservation")
        day.locator(".month-open").click()
        expect(page).to_have_url(f"{live_asgi}/calendar/?date={lab.tomorrow}")
        expect(page.locator(".row-gpu").first).to_be_visible()


def test_a_short_bar_opens_at_its_middle_and_has_a_card(browser, live_asgi, lab):
    own = lab.hold("alice", [0], 10, 11, purpose="short one")
    with page_of(browser, live_asgi, lab.people["alice"], viewport=DESK) as page:
        open_calendar(page, f"?view=week&date={lab.tomorrow}")
        bar = page.locator(f'.ec-event:has([data-reservation="{own.pk}"])')
        box = at_rest(bar)
        assert box["width"] < 12
        middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.move(*middle)
        card = page.locator(".hover-card")
        expect(card).to_contain_text("short one")
        expect(card).to_contain_text("tomorrow 10:00 – 11:00 (1 h)")
        expect(card).to_contain_text("Vision, firm")
        page.keyboard.press("Escape")
        expect(card).to_be_hidden()
        page.mouse.click(*middle)
        expect(page.locator("#details-title")).to_have_text("Your reservation")
        page.keyboard.press("Escape")
        page.locator(".ec-main").focus()
        page.keyboard.press("ArrowDown")
        expect(card).to_contain_text("short one")


def test_keys_change_the_view_and_begin_a_booking(browser, live_asgi, lab):
    with page_of(browser, live_asgi, lab.people["alice"], viewport=DESK) as page:
        open_calendar(page)
        for key, view in (("w", "week"), ("m", "month"), ("4", "4days"), ("d", "day")):
            page.keyboard.press(key)
            expect(page.locator(f'[name=view][value="{view}"]')).to_be_checked()
        page.keyboard.press("j")
        expect(page).to_have_url(f"{live_asgi}/calendar/?date={lab.tomorrow}")
        page.keyboard.press("k")
        expect(page).to_have_url(f"{live_asgi}/calendar/")
        page.keyboard.press("j")
        page.keyboard.press("t")
        expect(page).to_have_url(f"{live_asgi}/calendar/")
        page.keyboard.press("n")
        expect(page.locator("#start-day")).to_be_focused()
        page.locator("#purpose").focus()
        page.keyboard.type("wm")
        expect(page.locator('[name=view][value="day"]')).to_be_checked()


@pytest.mark.parametrize("ended", ["in the browser", "at the portal"])
def test_a_draft_survives_a_reload_and_the_end_of_the_session(
    browser, live_asgi, lab, ended
):
    alice = lab.people["alice"]
    with page_of(browser, live_asgi, alice, viewport=DESK) as page:
        open_calendar(page)
        page.click("#new-booking")
        page.locator("#gpu-list label").nth(2).click()
        set_when(page, "start", f"{lab.tomorrow}T13:00")
        page.fill("#purpose", "long thought")
        page.reload()
        expect(page.locator("#purpose")).to_have_value("long thought")
        expect(page.locator("#start")).to_have_value(f"{lab.tomorrow}T13:00")
        expect(page.locator("#gpu-count")).to_have_text("1 GPU")
        page.fill("#purpose", "longer thought")
        if ended == "at the portal":
            Session.objects.all().delete()
        else:
            page.context.clear_cookies()
        # The next question to the portal leads to the sign-in page.
        page.evaluate("document.querySelectorAll('#gpu-list input')[3]?.click()")
        expect(page.locator("main")).to_contain_text("You were signed out")
        page.locator("#id_username").fill(alice.username)
        page.locator("#id_password").fill(PASSWORD)
        page.keyboard.press("Enter")
        expect(page.locator("#purpose")).to_have_value("longer thought")
        page.click("#book")
        expect(page.locator(".toast")).to_contain_text("Booked")
        assert Reservation.objects.get().purpose == "longer thought"
        page.reload()
        expect(page.locator("#drawer")).to_be_hidden()


def test_a_day_that_is_typed_comes_into_view_and_times_are_read(
    browser, live_asgi, lab
):
    with page_of(browser, live_asgi, lab.people["alice"], viewport=DESK) as page:
        open_calendar(page)
        page.click("#new-booking")
        page.locator("#gpu-list label").first.click()
        set_when(page, "start", f"{lab.tomorrow}T930")
        expect(page.locator("#start")).to_have_value(f"{lab.tomorrow}T09:30")
        expect(page.locator("#start-time")).to_have_value("09:30")
        expect(page).to_have_url(f"{live_asgi}/calendar/?date={lab.tomorrow}")
        expect(page.locator(".bar-event.is-draft")).to_be_visible()
        page.locator("#start-time").press("ArrowUp")
        expect(page.locator("#start")).to_have_value(f"{lab.tomorrow}T09:45")
        page.fill("#start-time", "25:00")
        page.locator("#start-time").press("Tab")
        expect(page.locator("#start-error")).to_have_text(
            "Use 24 hours, for example 14:30."
        )
        expect(page.locator("#verdict")).to_have_text("Choose a start and an end.")


def test_the_zone_and_the_groups_are_named(browser, live_asgi, lab):
    lab.hold("carol", [4], 10, 12)
    options = {"viewport": DESK, "timezone_id": "Asia/Kolkata"}
    with page_of(browser, live_asgi, lab.people["alice"], **options) as page:
        open_calendar(page, f"?date={lab.tomorrow}")
        # Browsers use different names for it: Asia/Calcutta, Asia/Kolkata.
        zone = page.locator("#zone")
        expect(zone).to_contain_text("Times are in UTC. Your browser’s clock (Asia/")
        expect(zone).to_contain_text(") is 5 h 30 min ahead.")
        expect(page.locator("#groups")).to_have_text("Nlp")
    with page_of(browser, live_asgi, lab.people["alice"], timezone_id="UTC") as page:
        open_calendar(page)
        expect(page.locator("#zone")).to_have_text("Times are in UTC.")


def test_what_fits_the_quota_is_one_press_away(browser, live_asgi, lab):
    SitePolicy.objects.update(quota_gpu_seconds=30 * 3600, flex_horizon_seconds=900)
    with page_of(browser, live_asgi, lab.people["alice"], viewport=DESK) as page:
        open_calendar(page, f"?date={lab.tomorrow}")
        cell = row(page, lab.gpus[0])
        drag(page, point(cell, 10.05), point(cell, 15.95))
        notice = page.locator("#verdict .notice")
        expect(notice).to_contain_text("on you can book it as flex")
        page.get_by_role("button", name="Take the 3 h that fit").click()
        expect(page.locator("#verdict .verdict-kind")).to_contain_text("Firm")
        page.click("#book")
        expect(page.locator(".toast")).to_contain_text("Booked")
        made = Reservation.objects.get()
        assert made.end - made.start == timedelta(hours=3)


def test_at_the_limit_the_search_says_so(browser, live_asgi, lab):
    SitePolicy.objects.update(live_reservations=1)
    lab.hold("alice", [0], 10, 12)
    with page_of(browser, live_asgi, lab.people["alice"], viewport=DESK) as page:
        open_calendar(page)
        page.click("#open-find")
        page.get_by_role("button", name="Find", exact=True).click()
        expect(page.locator("#slots")).to_contain_text(
            "You have 1 of 1 bookings. Only slots that prolong one of them are shown."
        )


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_the_holder_is_asked_and_a_swap_requested(browser, live_asgi, lab, size):
    own = lab.hold("alice", [1], 14, 16, purpose="to swap")
    theirs = lab.hold("carol", [0], 10, 12)
    with page_of(browser, live_asgi, lab.people["alice"], viewport=size) as page:
        open_calendar(page, f"?date={lab.tomorrow}")
        if size == PHONE:
            page.locator(".agenda-gpu summary").first.click()
            page.locator(f'[data-key="r{theirs.pk}"]').click()
        else:
            page.locator(f'[data-reservation="{theirs.pk}"]').click()
        page.get_by_text("Ask the holder, or request a swap").click()
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".toast")).to_contain_text("Write a message first.")
        page.get_by_label("Message").fill("Could you free it by 11:00?")
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".toast").last).to_contain_text("Sent.")
        told = Notice.objects.get(user=lab.people["carol"])
        assert told.kind == "asked"
        page.get_by_text("Ask the holder, or request a swap").click()
        page.get_by_label("Message").fill("Still there?")
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".toast").last).to_contain_text("less than an hour ago")
        page.get_by_label("Offer a booking of yours for it").select_option(str(own.pk))
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".toast").last).to_contain_text("Swap proposed.")
        offer = Offer.objects.get()
        assert (offer.reservation_id, offer.wanted_id) == (own.pk, theirs.pk)


def test_a_starred_gpu_is_listed_first_and_stays_so(browser, live_asgi, lab):
    with page_of(browser, live_asgi, lab.people["alice"], viewport=DESK) as page:
        open_calendar(page, f"?date={lab.tomorrow}")
        star = page.get_by_role("button", name="Favourite: node-b 2")
        star.focus()
        page.keyboard.press("Enter")
        expect(star).to_have_attribute("aria-pressed", "true")
        labels = page.locator(".timeline .ec-row-head")
        expect(labels.nth(0)).to_contain_text("node-b")
        expect(labels.nth(1)).to_contain_text("GPU 2")
        assert violations(page) == []
        page.reload()
        expect(labels.nth(1)).to_contain_text("GPU 2")
        page.click("#new-booking")
        page.click("#more-gpus")
        box = page.locator(f"#gpu-list input[value='{lab.gpus[6].pk}']")
        expect(box).to_be_checked()


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_a_zone_of_half_an_hour_books_on_the_grid_of_an_hour(
    browser, live_asgi, lab, settings, size
):
    settings.TIME_ZONE = "Asia/Kolkata"
    SitePolicy.objects.update(grid_seconds=3600)
    with page_of(browser, live_asgi, lab.people["alice"], viewport=size) as page:
        open_calendar(page, f"?date={lab.tomorrow}")
        if size == DESK:
            cell = row(page, lab.gpus[0])
            drag(page, point(cell, 10.05), point(cell, 11.95))
            expect(page.locator("#start")).to_have_value(f"{lab.tomorrow}T09:30")
        else:
            page.click("#new-booking")
            page.locator("#gpu-list label").first.click()
            page.click("#start-now")
        expect(page.locator("#verdict .verdict-kind")).to_contain_text("Firm")
        page.click("#book")
        expect(page.locator(".toast")).to_contain_text("Booked")


def test_the_details_and_the_notice_lead_to_the_next_steps(browser, live_asgi, lab):
    alice = lab.people["alice"]
    own = lab.hold("alice", [1], 14, 16)
    with ThreadPoolExecutor(max_workers=1) as pool:
        pool.submit(tick.tick, own.start).result()
    with page_of(browser, live_asgi, alice, viewport=DESK) as page:
        open_calendar(page, f"?date={lab.tomorrow}")
        page.locator(f'[data-reservation="{own.pk}"]').click()
        page.get_by_role("link", name="What to do now").click()
        expect(page).to_have_url(f"{live_asgi}/reservations/{own.pk}/#steps-title")
        expect(page.get_by_role("heading", name="What to do now")).to_be_in_viewport()
        page.goto("/me/notices/")
        expect(
            page.get_by_label("A booking of yours has started, by mail")
        ).not_to_be_checked()
        page.goto("/notices/")
        told = page.locator(".notice-row", has_text="Your booking has started:")
        told.get_by_role("link").click()
        expect(page).to_have_url(f"{live_asgi}/reservations/{own.pk}/#steps-title")


LABELS_CUT = """() => {
  const labels = [...document.querySelectorAll(".timeline .ec-slot")].map((slot) => {
    const range = document.createRange();
    range.selectNodeContents(slot);
    const { left, right } = range.getBoundingClientRect();
    const cut = getComputedStyle(slot).overflowX !== "visible";
    const room = cut ? slot.getBoundingClientRect().right : Infinity;
    return { text: slot.textContent, left, right, room };
  }).filter(({ text }) => text);
  return labels.filter(({ right, room }, at) =>
    right > Math.min(room, labels[at + 1]?.left ?? Infinity));
}"""


def test_the_label_at_midnight_is_not_cut(browser, live_asgi, lab):
    with page_of(browser, live_asgi, lab.people["alice"], viewport=DESK) as page:
        open_calendar(page)
        label = page.locator(".timeline .ec-slot", has_text=re.compile(r"^\w{3} \d+$"))
        expect(label.first).to_be_visible()
        for width in range(1000, 1600, 40):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_timeout(100)
            eventually(page, lambda: page.evaluate(LABELS_CUT) == [])


@pytest.mark.parametrize("size", [DESK, PHONE])
def test_a_row_says_why_its_gpu_is_not_available_and_until_when(
    browser, live_asgi, lab, size
):
    now = timezone.now()
    drained, closed = lab.gpus[0], lab.gpus[1]
    drained.maintenance = True
    drained.save()
    Closure.objects.create(
        kind="maintenance",
        scope="gpus",
        start=now - timedelta(hours=1),
        end=now + timedelta(days=2),
        reason="new fans",
    ).gpus.add(closed)
    end = timezone.localtime(now + timedelta(days=2))
    with page_of(browser, live_asgi, lab.people["alice"], viewport=size) as page:
        open_calendar(page)
        if size == PHONE:
            note = page.locator(".agenda-gpu .agenda-note")
            expect(note.first).to_have_text("It is under maintenance.")
            expect(page.locator(".agenda-gpu").nth(1)).to_contain_text("new fans")
            return
        word = page.locator(f'.row-memory[data-gpu="{drained.pk}"]')
        expect(word).to_have_text("maintenance")
        expect(word).to_have_attribute("title", "It is under maintenance.")
        word = page.locator(f'.row-memory[data-gpu="{closed.pk}"]')
        expect(word).to_contain_text("closed until")
        expect(word).to_contain_text(f"{end:%H:%M}")
        until = f"{end:%a} {end.day} {end:%b} {end:%H:%M}"
        why = re.compile(f"^Maintenance \\w.* – {until}: new fans$")
        expect(word).to_have_attribute("title", why)
        assert violations(page) == []
        node = drained.node
        drain_node(
            node_id=node.pk,
            draining=True,
            actor=lab.people["alice"],
            reason="moves to room 3",
            now=now,
        )
        page.reload()
        word = page.locator(f'.row-memory[data-gpu="{lab.gpus[2].pk}"]')
        expect(word).to_have_text("draining")
        expect(word).to_have_attribute(
            "title",
            "Its node is draining: no new bookings. Reason: moves to room 3",
        )

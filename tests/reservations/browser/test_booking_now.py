"""Book for now, change and extend it: at a minute that no grid has, on every screen."""

import itertools
from datetime import datetime, timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from reservations.booking.service import book
from reservations.models import Reservation, SitePolicy
from reservations.rules.booking_alerts import SQUATTER
from telemetry.models import Alert
from tests.factories import make_account, make_membership
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
SIZES = [DESK, PHONE]
SHOW_NAMES = ["desk", "phone"]


@pytest.fixture
def seventeen(monkeypatch: pytest.MonkeyPatch) -> datetime:
    """Move the portal's clock to hh:53:17 of this hour; it goes on from there."""
    real = timezone.now
    now = real()
    shift = now.replace(minute=53, second=17, microsecond=0) - now
    monkeypatch.setattr(timezone, "now", lambda: real() + shift)
    return now + shift


@pytest.fixture
def lab(live_asgi: str, seventeen: datetime) -> Lab:
    return Lab()


def use_grid(seconds: int) -> None:
    SitePolicy.objects.update(grid_seconds=seconds)


def running(lab: Lab, **fields: object) -> Reservation:
    """Book GPU 0 for Alice now, as the page does: it begins at hh:53:17 or later."""
    now = timezone.now()
    hour = now.replace(minute=0, second=0, microsecond=0)
    alice = lab.people["alice"]
    return book(
        user=alice,
        membership=None,
        gpu_ids=[lab.gpus[0].pk],
        start=now,
        end=hour + timedelta(hours=3),
        purpose="first run",
        now=now,
        **fields,
    )


def open_now(page: Page) -> None:
    page.goto("/calendar/")
    expect(page.locator("#toolbar")).to_have_attribute("data-live", "open")


def open_details(page: Page, made: Reservation, size: dict[str, int]) -> None:
    """Press one's own bar, or the line of it on a phone."""
    if size == PHONE:
        # A GPU with a booking of one's own is unfolded.
        page.locator(f'[data-key="r{made.pk}"]').first.click()
    else:
        page.locator(f'[data-reservation="{made.pk}"]').first.click()
    expect(page.locator("#details-title")).to_be_visible()


@pytest.mark.parametrize("size", SIZES, ids=SHOW_NAMES)
@pytest.mark.parametrize("grid", [300, 900, 3600])
def test_now_books_for_every_length(browser, live_asgi, lab, size, grid):
    use_grid(grid)
    with page_of(browser, live_asgi, lab.people["alice"], viewport=size) as page:
        open_now(page)
        page.click("#new-booking")
        page.locator("#gpu-list label").first.click()
        page.click("#start-now")
        chips = page.locator("#lengths [data-seconds]")
        for number in range(chips.count()):
            chips.nth(number).click()
            expect(chips.nth(number)).to_have_attribute("aria-pressed", "true")
            expect(page.locator("#verdict .verdict-kind")).to_contain_text("Firm")
        chips.nth(1).click()
        page.click("#start-now")
        page.click("#start-now")
        # Pressing it again adds nothing to the length that was chosen.
        expect(chips.nth(1)).to_have_attribute("aria-pressed", "true")
        expect(page.locator("#verdict .verdict-kind")).to_contain_text("Firm")
        page.click("#book")
        expect(page.locator(".toast")).to_contain_text("Booked")
        [made] = Reservation.objects.all()
        assert made.state == "active"
        assert made.start.second or made.start.minute % 5
        assert int(made.end.timestamp()) % grid == 0
        length = made.end - timezone.now()
        assert timedelta(hours=2) - timedelta(minutes=1) < length
        assert length <= timedelta(hours=2, seconds=grid)


@pytest.mark.parametrize("size", SIZES, ids=SHOW_NAMES)
@pytest.mark.parametrize("state", ["confirmed", "active"])
def test_a_change_in_the_drawer_is_saved(browser, live_asgi, lab, size, state):
    if state == "confirmed":
        day = lab.tomorrow
        own = lab.hold("alice", [0], 10, 12, purpose="first run")
    else:
        own = running(lab)
    with page_of(browser, live_asgi, lab.people["alice"], viewport=size) as page:
        page.goto("/calendar/" + (f"?date={day}" if state == "confirmed" else ""))
        expect(page.locator("#toolbar")).to_have_attribute("data-live", "open")
        open_details(page, own, size)
        page.get_by_role("button", name="Change").click()
        expect(page.locator("#purpose")).to_have_value("first run")
        page.fill("#purpose", "second run")
        later = own.end + timedelta(hours=1)
        set_when(page, "end", timezone.localtime(later).strftime("%Y-%m-%dT%H:%M"))
        expect(page.locator("#verdict .verdict-kind")).to_contain_text("Firm")
        page.get_by_role("button", name="Save changes").click()
        expect(page.locator(".toast")).to_contain_text("Changed")
        expect(page.locator("#drawer")).to_be_hidden()
        began = own.start
        own.refresh_from_db()
        assert (own.start, own.end, own.purpose) == (began, later, "second run")


@pytest.mark.parametrize("size", SIZES, ids=SHOW_NAMES)
def test_the_purpose_alone_can_be_changed(browser, live_asgi, lab, size):
    own = running(lab)
    rows = own.ledger.count()
    with page_of(browser, live_asgi, lab.people["alice"], viewport=size) as page:
        open_now(page)
        open_details(page, own, size)
        page.get_by_role("button", name="Change").click()
        page.fill("#purpose", "renamed")
        page.get_by_role("button", name="Save changes").click()
        expect(page.locator("#drawer")).to_be_hidden()
        own.refresh_from_db()
        assert own.purpose == "renamed"
        assert own.ledger.count() == rows


def test_the_edge_of_what_began_now_can_be_dragged(browser, live_asgi, lab):
    own = running(lab)
    with page_of(browser, live_asgi, lab.people["alice"], viewport=DESK) as page:
        page.goto("/calendar/?view=day")
        expect(page.locator("#toolbar")).to_have_attribute("data-live", "open")
        cell = row(page, lab.gpus[0])
        hour_px = point(cell, 1)[0] - point(cell, 0)[0]
        bar = page.locator(f'.ec-event:has([data-reservation="{own.pk}"])').first
        box = at_rest(bar)
        edge = (box["x"] + box["width"] - 3, box["y"] + box["height"] / 2)
        drag(page, edge, (edge[0] + hour_px, edge[1]))
        expect(page.locator(".toast")).to_contain_text("Changed")
        began, ended = own.start, own.end
        own.refresh_from_db()
        assert own.start == began
        assert own.end == ended + timedelta(hours=1)


@pytest.mark.parametrize("size", SIZES, ids=SHOW_NAMES)
def test_one_hour_longer_on_its_own_page_and_the_form_there(
    browser, live_asgi, lab, size
):
    own = running(lab)
    began, ended = own.start, own.end
    with page_of(browser, live_asgi, lab.people["alice"], viewport=size) as page:
        page.goto(f"/reservations/{own.pk}/")
        page.get_by_role("button", name="One hour longer").click()
        expect(page.locator(".toast")).to_contain_text("Changed")
        own.refresh_from_db()
        assert (own.start, own.end) == (began, ended + timedelta(hours=1))
        shown = timezone.localtime(ended + timedelta(hours=1))
        expect(page.locator("#end")).to_have_value(shown.strftime("%Y-%m-%dT%H:%M"))
        later = timezone.localtime(ended + timedelta(hours=2))
        set_when(page, "end", later.strftime("%Y-%m-%dT%H:%M"))
        page.get_by_role("button", name="Save changes").click()
        expect(page.locator(".toast")).to_have_count(2)
        own.refresh_from_db()
        assert (own.start, own.end) == (began, ended + timedelta(hours=2))


def test_the_drawer_shows_its_whole_form(browser, live_asgi, lab):
    alice = lab.people["alice"]
    make_membership(alice, make_account("course", title="Intro to ML"))
    with page_of(browser, live_asgi, alice) as page:
        # One is opened on a phone and one at a desk. Windows of a kind are resized.
        for widths in ([390, 360], [1440, 768, 1024, 1100, 1920, 2560]):
            page.set_viewport_size({"width": widths[0], "height": 900})
            open_now(page)
            page.click("#new-booking")
            page.locator("#gpu-list label").first.click()
            expect(page.locator("#verdict .verdict-kind")).to_be_visible()
            for width in widths:
                page.set_viewport_size({"width": width, "height": 900})
                shows_its_whole_form(page, width)


def shows_its_whole_form(page: Page, width: int) -> None:
    drawer = at_rest(page.locator("#drawer"))
    body = at_rest(page.locator("#booking > .drawer-body"))
    names = ["#membership", "#start-day", "#start-time", "#end-day", "#end-time"]
    names += ["#start-now", "#gpu-count", "#gpu-list", "#purpose", "#book"]
    seen = []
    for name in names:
        box = page.locator(name).bounding_box()
        assert box is not None, (width, name)
        assert box["x"] >= drawer["x"], (width, name)
        assert box["x"] + box["width"] <= drawer["x"] + drawer["width"], (width, name)
        bottom = drawer if name == "#book" else body
        end = bottom["y"] + bottom["height"]
        assert box["y"] + box["height"] <= end, (width, name)
        seen.append(box["y"])
    assert all(a <= b + 8 for a, b in itertools.pairwise(seen)), width
    # Nothing of the page lies under it where there is room for both.
    if width > 1000:
        timeline = page.locator("#timeline").bounding_box()
        assert timeline is not None
        assert timeline["x"] + timeline["width"] <= drawer["x"], width


@pytest.mark.parametrize("size", SIZES, ids=SHOW_NAMES)
def test_undo_takes_back_what_was_booked_for_now(browser, live_asgi, lab, size):
    with page_of(browser, live_asgi, lab.people["alice"], viewport=size) as page:
        open_now(page)
        page.click("#new-booking")
        page.locator("#gpu-list label").first.click()
        page.click("#start-now")
        expect(page.locator("#verdict .verdict-kind")).to_be_visible()
        page.click("#book")
        page.locator(".toast").get_by_role("button", name="Undo").click()
        expect(page.locator(".toast")).to_contain_text("Undone")
        [made] = Reservation.objects.all()
        assert made.state == "cancelled"
        assert not made.ledger.filter(kind="charge").exists()


@pytest.mark.parametrize("size", SIZES, ids=SHOW_NAMES)
def test_a_running_booking_gets_an_hour_more_in_two_clicks(
    browser, live_asgi, lab, size
):
    own = running(lab)
    ended = own.end
    with page_of(browser, live_asgi, lab.people["alice"], viewport=size) as page:
        open_now(page)
        open_details(page, own, size)
        page.get_by_role("button", name="1 h longer").click()
        expect(page.locator(".toast")).to_contain_text("Changed")
        own.refresh_from_db()
        assert own.end == ended + timedelta(hours=1)


def test_the_account_that_paid_last_is_offered(browser, live_asgi, lab):
    alice = lab.people["alice"]
    # First by its name, and the default before anything was booked.
    make_membership(alice, make_account("a-course", title="A course"))
    vision = alice.memberships.get(account__name="vision")
    with page_of(browser, live_asgi, alice, viewport=DESK) as page:
        open_now(page)
        page.click("#new-booking")
        expect(page.locator("#membership option:checked")).to_have_text("A course")
        page.keyboard.press("Escape")
        lab.hold("alice", [3], 10, 12, membership=vision)
        page.reload()
        page.click("#new-booking")
        expect(page.locator("#membership option:checked")).to_have_text("Vision")


def test_a_gpu_that_somebody_uses_is_marked_and_offered_last(browser, live_asgi, lab):
    now = timezone.now()
    Alert.objects.create(
        rule=SQUATTER, gpu=lab.gpus[0], opened_at=now, last_seen_at=now
    )
    with page_of(browser, live_asgi, lab.people["alice"], viewport=DESK) as page:
        open_now(page)
        page.click("#open-find")
        page.select_option("#find-class", "NVIDIA A100 80GB")
        page.get_by_role("button", name="Find", exact=True).click()
        first = page.locator(".slot-card").first
        expect(first).to_contain_text("Now")
        expect(first).to_contain_text("node-a 1")
        expect(first).not_to_contain_text("process")
        page.click("#new-booking")
        page.locator("#gpu-list label").first.click()
        page.click("#start-now")
        expect(page.locator("#verdict")).to_contain_text(
            "Someone else’s process uses node-a 0 now. If it is still there"
        )
        lab.hold("bob", [1, 2, 3], 0, 1)
        for number in (1, 2, 3):
            Alert.objects.create(
                rule=SQUATTER, gpu=lab.gpus[number], opened_at=now, last_seen_at=now
            )
        page.get_by_role("button", name="Find", exact=True).click()
        expect(first).to_contain_text("Someone else’s process uses node-a 0 now.")


def test_a_refused_draft_says_so_and_keeps_the_focus(browser, live_asgi, lab):
    running(lab)
    with page_of(browser, live_asgi, lab.people["bob"], viewport=DESK) as page:
        open_now(page)
        page.click("#new-booking")
        page.locator("#gpu-list label").first.click()
        page.click("#start-now")
        button = page.locator("#book")
        expect(button).to_have_text("Cannot be booked")
        button.focus()
        page.keyboard.press("Enter")
        expect(button).not_to_have_attribute("aria-busy", "true")
        expect(button).to_be_focused()
        page.locator("#gpu-list label").nth(1).click()
        page.locator("#gpu-list label").nth(0).click()
        expect(button).to_have_text("Book")


def test_one_more_gpu_offers_another_class(browser, live_asgi, lab):
    with page_of(browser, live_asgi, lab.people["alice"], viewport=DESK) as page:
        open_now(page)
        page.click("#new-booking")
        page.click("#more-gpus")
        # The cheapest first: an A30 costs 3 credits, an A100 10.
        expect(page.locator("#gpu-list")).to_contain_text("3 credits per hour")
        expect(
            page.get_by_role("group", name="node-b").locator(":checked")
        ).to_have_count(1)
        page.click("#more-gpus")
        page.click("#more-gpus")
        expect(page.locator("#gpu-count")).to_have_text("3 GPUs")
        page.click("#more-gpus")
        expect(page.locator("#gpu-hint")).to_contain_text("No other A30 is free then.")
        page.get_by_role("button", name="Add A100 80GB").click()
        expect(page.locator("#gpu-count")).to_have_text("4 GPUs")
        expect(page.locator("#more-gpus")).to_be_focused()


@pytest.mark.parametrize("size", SIZES, ids=SHOW_NAMES)
def test_of_too_many_gpus_as_many_are_taken_as_one_may_hold(
    browser, live_asgi, lab, size
):
    SitePolicy.objects.update(gpus_at_once=2)
    with page_of(browser, live_asgi, lab.people["alice"], viewport=size) as page:
        open_now(page)
        page.click("#new-booking")
        for number in range(3):
            page.locator("#gpu-list label").nth(number).click()
        page.click("#start-now")
        expect(page.locator("#verdict")).to_contain_text("Too many GPUs at once")
        page.get_by_role("button", name="Take 2 of them", exact=True).click()
        expect(page.locator("#verdict .verdict-kind")).to_contain_text("Firm")
        expect(page.locator("#book")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator(".toast")).to_contain_text("Booked")
        [made] = Reservation.objects.all()
        assert made.allocations.count() == 2

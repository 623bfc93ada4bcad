"""The operator's pages of machines, closed time and policies: axe, wide and narrow."""

from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect

from reservations.models import Closure, PoolRule, Reservation
from reservations.operations.peak_hours import read_hours
from reservations.rules.lifecycle import State
from reservations.rules.prices import PeakHours
from telemetry.models import Gpu
from tests.factories import make_gpus, make_node, make_reservation
from tests.pages import fits, violations
from tests.reservations.browser.ground import page_of, set_when

pytestmark = pytest.mark.django_db(transaction=True)


NARROW = {"width": 360, "height": 900}
WIDE = {"width": 1280, "height": 900}


def checked(page: Page) -> None:
    """Axe finds nothing, and nothing sticks out, wide and narrow. It is left narrow."""
    for theme, size in (("light", WIDE), ("dark", NARROW)):
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size(size)
        # A page that is at a part of it has a bar over other parts.
        page.evaluate("() => scrollTo(0, 0)")
        assert violations(page) == [], page.url
        fits(page)


def wall(hours: int) -> str:
    at = timezone.localtime() + timedelta(hours=hours)
    return at.strftime("%Y-%m-%dT%H:00")


def test_the_desk_by_hand(browser: Browser, live_asgi, alice, omar) -> None:
    gpus = make_gpus(4, make_node("node-a"))
    soon = timezone.now().replace(minute=0, second=0, microsecond=0)
    booked = make_reservation(
        alice, gpus, soon + timedelta(hours=30), soon + timedelta(hours=32)
    )
    peak = PeakHours(2, read_hours("Mon-Fri 9-18; Sat 10-14"), "Europe/Berlin")
    PoolRule.objects.create(pool=gpus[0].pool, peak=peak.to_text())
    with page_of(browser, live_asgi, omar, viewport=NARROW) as page:
        close_and_reopen(page, booked)
        drain(page)
        import_and_course(page)
        for path in (
            "pools/",
            f"pools/{gpus[0].pool_id}/",
            "gpus/replace/",
            "policy/booking/",
            "policy/telemetry/",
        ):
            page.goto(f"/manage/{path}")
            # On a phone the tabs wait behind a button.
            tabs = page.get_by_role("navigation", name="Manage")
            chooser = page.locator('[popovertarget="manage-tabs"]:visible')
            expect(tabs.or_(chooser).first).to_be_visible()
            checked(page)


def close_and_reopen(page: Page, booked: Reservation) -> None:
    page.goto("/manage/closures/new/")
    expect(page.get_by_label("Kept for (teaching)")).to_be_hidden()
    page.get_by_label("Reason").fill("New fans, all night")
    expect(page.locator("input[type=datetime-local]")).to_have_count(0)
    set_when(page, "id_start", wall(29))
    set_when(page, "id_end", wall(40))
    page.get_by_label("Node", exact=True).select_option(label="node-a")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("heading", name="1 affected booking")).to_be_visible()
    checked(page)
    page.get_by_role("button", name="Save and notify them").click()
    expect(page.get_by_text("Maintenance saved.")).to_be_visible()
    booked.refresh_from_db()
    assert booked.state == State.REFUNDED
    checked(page)
    page.get_by_role("button", name="Cancel maintenance New fans").click()
    expect(page.get_by_text("the time can be booked again")).to_be_visible()
    assert Closure.objects.get().cancelled_at is not None


def import_and_course(page: Page) -> None:
    page.goto("/manage/accounts/import/")
    rows = b"row,account,shares\naccount,vision,5\n"
    file = {"name": "a.csv", "mimeType": "text/csv", "buffer": rows}
    page.get_by_label("CSV file").set_input_files(file)
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("1 row would change, 0 would not.")).to_be_visible()
    checked(page)
    page.get_by_label("Reason").fill("new term")
    page.get_by_role("button", name="Import all").click()
    expect(page.get_by_text("Imported as change #")).to_be_visible()
    page.goto("/manage/courses/new/")
    page.get_by_label("Name, as in").fill("cs-1")
    page.get_by_label("Last day", exact=True).fill("2099-01-31")
    rows = b"user;name;mail\nalice;;\nnew;New;new@uni.example\n"
    page.get_by_label("List of students").set_input_files(file | {"buffer": rows})
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("2 students, 1 of them get a new account")).to_be_visible()
    checked(page)
    page.get_by_role("button", name="Create course").click()
    expect(page.get_by_text("Course created: 2 students, 1 of them")).to_be_visible()


def drain(page: Page) -> None:
    page.goto("/manage/gpus/")
    page.get_by_label("All on this page").check()
    page.get_by_label("Choose node-a:3").uncheck()
    page.get_by_label("With the chosen GPUs").select_option(label="Drain")
    checked(page)
    page.get_by_role("button", name="Preview").click()
    page.get_by_label("Reason").fill("moving house")
    checked(page)
    page.get_by_role("button", name="Drain").click()
    expect(page.get_by_text("Drain: 3 GPUs changed.")).to_be_visible()
    assert Gpu.objects.filter(draining=True).count() == 3

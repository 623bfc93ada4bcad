"""A booking's page: what and when as title, the next steps, and its jobs, live."""

import os
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from placement.models import Job
from reservations.booking.booking_change import change
from reservations.notifications.live import NAMED
from reservations.rules.lifecycle import State
from tests.factories import make_reservation
from tests.pages import (
    DESKTOP,
    PHONE,
    check_themes,
    elsewhere,
    eventually,
    fits,
    violations,
)
from tests.reservations.browser.ground import Lab, page_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lab(live_asgi: str) -> Lab:
    return Lab()


@pytest.mark.parametrize(("theme", "size"), [("light", DESKTOP), ("dark", PHONE)])
def test_it_says_what_to_do_and_lists_the_jobs_that_run_in_it(
    browser, live_asgi, lab, theme, size
):
    alice = lab.people["alice"]
    alice.unix_user = "alice"
    alice.save()
    node = lab.gpus[0].node
    node.ssh_address, node.isolation = "node-a.lab.example", "enforced"
    node.save()
    now = timezone.now()
    made = make_reservation(
        alice,
        lab.gpus[:2],
        now - timedelta(minutes=5),
        now + timedelta(hours=3),
        state=State.ACTIVE,
        checked_in_at=now,
    )
    Job.objects.create(
        name="first run", owner=alice, node=node, reservation=made, state="running"
    )
    width, height = size
    viewport = {"width": width, "height": height}
    with page_of(browser, live_asgi, alice, viewport=viewport) as page:
        page.goto(f"/reservations/{made.pk}/")
        expect(page.locator("h1")).to_have_text("2 × NVIDIA A100 80GB on node-a")
        steps = page.locator(".next-steps")
        expect(steps).to_contain_text("node-a, GPU 0, 1")
        expect(steps).to_contain_text("ssh alice@node-a.lab.example")
        expect(page.locator("#jobs")).to_contain_text("first run")
        page.locator("main .term", has_text="credits").first.click()
        expect(page.locator(".term-card:popover-open")).to_contain_text(
            "GPU-hours × 10"
        )
        page.keyboard.press("Escape")
        fits(page)
        check_themes(page, theme)
        if folder := os.environ.get("PICTURES"):
            page.screenshot(
                path=Path(folder) / f"reservation-{width}.png", full_page=True
            )


def test_a_change_from_elsewhere_keeps_what_is_typed_and_unfolded(
    browser, live_asgi, lab, redis_client
):
    alice = lab.people["alice"]
    own = lab.hold("alice", [0, 1], 8, 12)
    with page_of(browser, live_asgi, alice) as page:
        page.goto(f"/reservations/{own.pk}/")
        eventually(page, lambda: bool(redis_client.keys(f"*:group:{NAMED}")))
        page.locator("summary", has_text="Return some GPUs").click()
        page.fill("#give-hours", "1")
        page.locator("#fold-return [name=gpus]").first.check()
        page.locator("summary", has_text="Give away").click()
        page.locator("#offer-message").press_sequentially("for your deadlin")
        elsewhere(
            change,
            reservation_id=own.pk,
            user=alice,
            end=lab.at(14),
            version=own.version,
            now=timezone.now(),
        )
        expect(page.locator("#end")).to_have_value(f"{lab.tomorrow}T14:00")
        expect(page.locator("#fold-return")).to_have_attribute("open", "")
        expect(page.locator("#fold-share")).not_to_have_attribute("open", "")
        expect(page.locator("#give-hours")).to_have_value("1")
        expect(page.locator("#fold-return [name=gpus]").first).to_be_checked()
        expect(page.locator("[data-price-said]")).to_contain_text("You get")
        expect(page.locator("#offer-message")).to_be_focused()
        page.keyboard.type("e")
        expect(page.locator("#offer-message")).to_have_value("for your deadline")
        assert violations(page) == []

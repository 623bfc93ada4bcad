"""The list of alerts in a browser: it updates without a reload and stays unfolded."""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from reservations.rules import booking_alerts
from reservations.rules.lifecycle import State
from telemetry.alerts.service import acknowledge_alert, close_alert, open_alert
from telemetry.models import Alert
from telemetry.rules import alert_rules
from tests.factories import make_gpus, make_node, make_reservation, make_user
from tests.pages import check_looks, elsewhere, fits, hold_back

pytestmark = pytest.mark.django_db(transaction=True)


def open_settled(page: Page, url: str) -> None:
    """Open the page and wait for its first refresh, which replaces the list."""
    with page.expect_response(lambda r: "x-fragment" in r.request.headers):
        page.goto(url)
    expect(page.locator("[aria-busy=true]")).to_have_count(0)


def close(alert: Alert) -> None:
    """Close an alert. Its cause is gone."""
    now = timezone.now()
    elsewhere(close_alert, rule=alert.rule, gpu_id=alert.gpu_id, now=now)


def lose_a_gpu(node: str) -> None:
    """Open an alert of the worst severity, on a new node."""
    (gpu,) = make_gpus(1, make_node(node))
    now = timezone.now()
    elsewhere(open_alert, rule=alert_rules.LOST, gpu_id=gpu.pk, now=now)


def reading(ago: float, **more: object) -> dict:
    return {
        "at": timezone.now().timestamp() - ago,
        "state": "ok",
        "util_pct": 93,
        "memory_used_bytes": 37 * 2**30,
        "temperature_celsius": 71,
        "power_watts": 288.4,
        "processes": [{"pid": 4711, "user": "bob", "memory_bytes": 36 * 2**30}],
        "process_count": 1,
        **more,
    }


@pytest.fixture
def found(alice) -> list[Alert]:
    """An intruder, a wedged node, a hot card; one of them snoozed."""
    node, now = make_node("node-a"), timezone.now()
    gpus = make_gpus(3, node)
    booked = make_reservation(
        alice, gpus[:1], now, now + timedelta(hours=3), state=State.ACTIVE
    )
    open_alert(
        rule=booking_alerts.INTRUDER,
        gpu_id=gpus[0].pk,
        now=now - timedelta(minutes=4),
        reservation_id=booked.pk,
        detail={
            "users": ["bob"],
            "processes": [
                {
                    "pid": 4711,
                    "uid": 1002,
                    "user": "bob",
                    "command": "python train_a_model_with_a_long_name.py",
                    "memory_bytes": 36 * 2**30,
                    "started_at": 1.0,
                    "job": None,
                }
            ],
        },
        readings=[reading(10 - n) for n in range(5)],
    )
    open_alert(
        rule=alert_rules.WEDGED,
        node_id=node.pk,
        now=now - timedelta(hours=1),
        detail={"reason": "the sampling child 4242 survives SIGKILL in nvidia_open"},
    )
    open_alert(
        rule=alert_rules.THERMAL,
        gpu_id=gpus[1].pk,
        now=now - timedelta(minutes=9),
        readings=[reading(9, throttle=["hw_thermal", "hw_slowdown"])],
    )
    open_alert(rule=booking_alerts.SQUATTER, gpu_id=gpus[2].pk, now=now)
    hot = Alert.objects.get(rule=alert_rules.THERMAL)
    acknowledge_alert(alert_id=hot.pk, by="omar", now=now)
    return list(Alert.objects.order_by("pk"))


@pytest.fixture
def operator():
    return make_user("omar", is_staff=True, is_superuser=True)


def test_the_alerts_page(
    page: Page, live_asgi: str, operator, found, sign_in: Callable[..., None]
):
    sign_in(operator)
    open_settled(page, f"{live_asgi}/alerts/#alert-{found[0].pk}")
    expect(page.locator("#alerts-live")).to_have_text("live")
    expect(page.locator(".alert")).to_have_count(4)
    expect(page.get_by_text("Readings that opened it").first).to_be_visible()
    check_looks(page)
    if folder := os.environ.get("PICTURES"):
        page.screenshot(path=Path(folder) / "alerts.png", full_page=True)


def test_a_change_comes_by_itself_and_what_was_unfolded_stays_so(
    page: Page, live_asgi: str, operator, found, sign_in: Callable[..., None]
):
    sign_in(operator)
    open_settled(page, f"{live_asgi}/alerts/")
    expect(page.locator("#alerts-live")).to_have_text("live")
    page.locator(f"#alert-{found[0].pk} summary").click()
    expect(page.locator("details[open]")).to_have_count(1)
    close(found[-1])
    expect(page.locator(".alert")).to_have_count(3)
    expect(page.locator(f"#alert-{found[0].pk} details[open]")).to_have_count(1)
    expect(page.locator("#announcer")).to_have_text("3 alerts in this list")


def test_what_is_unfolded_before_its_script_is_there_stays_so(
    page: Page, live_asgi: str, operator, found, sign_in: Callable[..., None]
):
    sign_in(operator)
    let_come = hold_back(page, "bundle/alerts-page-*.js")
    page.goto(f"{live_asgi}/alerts/", wait_until="commit")
    page.locator(f"#alert-{found[0].pk} summary").click()
    expect(page.locator("details[open]")).to_have_count(1)
    with page.expect_response(lambda r: "x-fragment" in r.request.headers):
        let_come()
    close(found[-1])
    expect(page.locator(".alert")).to_have_count(3)
    expect(page.locator(f"#alert-{found[0].pk} details[open]")).to_have_count(1)


def test_the_row_at_which_a_person_is_stays_there(
    page: Page, live_asgi: str, operator, found, sign_in: Callable[..., None]
):
    """A worse alert comes above it, then the alert itself closes."""
    Alert.objects.exclude(pk=found[-1].pk).update(closed_at=timezone.now())
    sign_in(operator)
    open_settled(page, f"{live_asgi}/alerts/")
    row = page.locator(f"#alert-{found[-1].pk}")
    row.locator("summary").click()
    button = row.get_by_role("button", name="Acknowledge")
    button.focus()
    before = button.bounding_box()
    for index in (0, 1):
        lose_a_gpu(f"node-{index}")
        expect(page.locator(".alert")).to_have_count(2 + index)
        expect(button).to_be_focused()
        assert button.bounding_box() == before
    # One above it goes: it does not move up either.
    close(Alert.objects.get(gpu__node__name="node-1"))
    expect(page.locator(".alert")).to_have_count(2)
    assert button.bounding_box() == before
    close(found[-1])
    expect(row.locator(".chip")).to_have_text("closed")
    expect(row.locator("details[open]")).to_be_visible()
    expect(button).to_have_count(0)
    expect(row.locator("summary")).to_be_focused()
    # It leaves the list at the first change after it was folded.
    row.locator("summary").click()
    expect(row.locator("details[open]")).to_have_count(0)
    lose_a_gpu("node-2")
    expect(row).to_have_count(0)


def test_an_operator_snoozes_and_finds_it_again_by_its_state(
    page: Page, live_asgi: str, operator, found, sign_in: Callable[..., None]
):
    sign_in(operator)
    page.goto(f"{live_asgi}/alerts/?severity=critical#alert-{found[1].pk}")
    page.get_by_role("button", name="8 h").click()
    expect(page.get_by_text("No alert matches")).to_be_visible()
    page.get_by_label("State", exact=True).select_option("snoozed")
    page.get_by_role("button", name="Filter").click()
    expect(page).to_have_url(
        f"{live_asgi}/alerts/?state=snoozed&severity=critical&rule=&node=&sort="
    )
    expect(page.locator(".alert")).to_have_count(1)
    expect(page.get_by_text("snoozed until")).to_be_visible()


def test_a_student_without_alerts_is_taught(
    page: Page,
    live_asgi: str,
    carol,
    sign_in: Callable[..., None],
    axe,
):
    sign_in(carol, "dark")
    page.set_viewport_size({"width": 360, "height": 760})
    open_settled(page, f"{live_asgi}/alerts/")
    expect(page.get_by_role("heading", name="No alert for you")).to_be_visible()
    axe()
    fits(page)

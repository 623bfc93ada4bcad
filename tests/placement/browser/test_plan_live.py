"""The planning page while one types: figures at once, the refined ones over the socket,
two plans side by side, and a booking from the earliest start."""

import re
from datetime import timedelta

from django.utils import timezone
from playwright.sync_api import Page, expect

from placement.jobs import job_broadcast
from placement.models import Refinement, StoredPlan
from reservations.models import Reservation
from reservations.rules.lifecycle import State
from tests.factories import make_reservation
from tests.pages import PHONE, check_looks, elsewhere, eventually, hold

GIB = 2**30


def told(**fields: object) -> None:
    """Move the newest Refinement on, as its worker would."""

    def move() -> None:
        row = Refinement.objects.first()
        assert row is not None
        Refinement.objects.filter(pk=row.pk).update(**fields)
        job_broadcast.publish_refinement(row.pk)

    elsewhere(move)


def asked_for(page: Page, *, length: int) -> None:
    """Wait till the page has asked for a Refinement with sequences that long."""

    def asked() -> bool:
        row = elsewhere(Refinement.objects.first)
        return row is not None and row.case["input"]["seq"] == length

    eventually(page, asked)


def test_figures_come_while_typing_and_refined_ones_over_the_socket(
    page: Page, live_asgi, live_cluster, sign_in, alice
):
    sign_in(alice)
    page.goto(f"{live_asgi}/plan/")
    likely = page.locator("#now-likely")
    before = likely.inner_text()
    let_go = hold(page, "**/plan/")
    batch = page.get_by_label("Batch", exact=True)
    batch.fill("")
    batch.press_sequentially("64", delay=30)
    # The search has not answered, and the page does not wait for it.
    expect(likely).not_to_have_text(before)
    expect(batch).to_have_value("64")
    expect(batch).to_be_focused()
    let_go()
    expect(page).to_have_url(re.compile("batch=64"))
    page.get_by_label("Sequence length").fill("2x")
    expect(page.locator("#e-sequence_length")).to_contain_text("whole number")
    expect(page.locator("#now-none")).to_contain_text("Sequence length")
    page.get_by_label("Sequence length").fill("256")
    expect(page).to_have_url(re.compile("sequence_length=256"))
    asked_for(page, length=256)
    state = page.locator("#refined-state")
    expect(state).to_have_text("waiting for a worker")
    told(state="running", doing="backward", done_ratio=0.5)
    expect(state).to_have_text("running")
    expect(page.locator("#refined-words")).to_have_text("Now: backward.")
    expect(page.locator("#refined-progress")).to_have_js_property("value", 0.5)
    answer = {"peak_bytes": 10 * GIB, "seconds": 1.2, "method": "symbolic"}
    told(state="done", doing="", done_ratio=1.0, answer=answer)
    expect(state).to_have_text("done")
    expect(page.locator("#refined-likely")).to_have_text("11.7 GiB")
    expect(page.locator("#refined-words")).to_contain_text("than the estimate above")
    page.get_by_text("LoRA, quantized weights, offload").click()
    page.get_by_label("Weights", exact=True).select_option("nf4")
    expect(page.locator("#refined-words")).to_contain_text(
        "no exact check for quantized"
    )


def test_the_start_is_typed_as_a_day_and_a_time_in_24_hours(
    page: Page, live_asgi, live_cluster, sign_in, alice
):
    sign_in(alice)
    page.goto(f"{live_asgi}/plan/")
    expect(page.locator("input[type=datetime-local]")).to_have_count(0)
    day = f"{timezone.now() + timedelta(days=1):%Y-%m-%d}"
    page.get_by_label("From", exact=True).fill(day)
    page.get_by_label("From, time (24 h)").fill("1530")
    with page.expect_request(
        lambda sent: (
            f"{day}T15:30" in (sent.post_data or "") and sent.url.endswith("/plan/")
        )
    ):
        page.get_by_label("From, time (24 h)").press("Tab")
    expect(page.locator("#id_at-time")).to_have_value("15:30")


def test_two_plans_are_compared_and_one_is_booked_from_the_earliest_start(
    page: Page, live_asgi, live_cluster, sign_in, alice, bob
):
    sign_in(alice)
    page.goto(f"{live_asgi}/plan/?batch=64")
    boxes = page.get_by_label("compare")
    # Each mark draws the cards again.
    boxes.nth(0).check()
    expect(page).to_have_url(re.compile("compare="))
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    boxes.nth(1).check()
    expect(page.locator("#compare .compare-verdict")).to_contain_text("times as fast")
    expect(page).to_have_url(re.compile("compare=.*compare="))
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    card = page.locator(".plan-card").first
    card.get_by_role("button", name="Save, share, files").click()
    page.wait_for_url(re.compile(r"/plan/\d+/$"))
    now = timezone.now()
    end = now + timedelta(hours=3)

    def take() -> None:
        make_reservation(bob, live_cluster.gpus, now, end, state=State.ACTIVE)

    elsewhere(take)
    page.reload()
    expect(page.locator("#earliest")).to_contain_text("Earliest start on these GPUs")
    assert page.get_by_label("From", exact=True).input_value() != ""
    page.get_by_label("Hours").fill("1")
    with page.expect_download() as saved:
        page.get_by_role("link", name="Download all").click()
    assert saved.value.suggested_filename.endswith(".zip")
    page.get_by_role("button", name="Book").click()
    page.wait_for_url("**/reservations/**")
    held = Reservation.objects.get(user=alice)
    assert held.start >= end
    assert held.purpose == StoredPlan.objects.get().title


def test_axe_finds_nothing_on_a_kept_plan_and_a_comparison(
    page: Page, live_asgi, live_cluster, sign_in, alice
):
    sign_in(alice)
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    for number in (0, 1):
        page.goto(f"{live_asgi}/plan/?batch=64")
        buttons = page.get_by_role("button", name="Save, share, files")
        buttons.nth(number).click()
        page.wait_for_url(re.compile(r"/plan/\d+/$"))
    page.get_by_role("button", name="Create a link").click()
    expect(page.get_by_role("button", name="Remove the link")).to_be_visible()
    page.locator("details").evaluate_all("(all) => all.forEach((d) => (d.open = true))")
    check_looks(page)
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#compare")).to_be_visible()
    check_looks(page)
    page.goto(f"{live_asgi}/plan/kept/")
    check_looks(page)

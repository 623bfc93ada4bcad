"""The launch page in a real browser: another plan is one press away."""

from django.utils import timezone
from playwright.sync_api import Page, expect

from placement.models import Job
from placement.planner.values.strategies import STRATEGIES
from reservations.rules.lifecycle import State
from tests.factories import make_reservation
from tests.pages import fits
from tests.placement.lab import plan_on


def test_the_next_best_plan_is_one_press_away(
    page: Page, live_asgi, live_cluster, sign_in, console, alice, settings
):
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    plan = plan_on(alice, "pipeline", "bloom")
    gpus = [gpu for gpu in live_cluster.gpus if str(gpu.node) == plan.plan["node"]]
    booked = make_reservation(alice, gpus, start=timezone.now(), state=State.ACTIVE)
    sign_in(alice)
    page.goto(f"{live_asgi}/jobs/new/?reservation={booked.pk}&plan={plan.pk}")
    page.locator("[name=what][value=fine-tune]").check()
    page.locator("details[data-settings=fine-tune] > summary").click()
    page.locator("[name='fine-tune.model']").fill("org/tiny")
    page.locator("[name='fine-tune.data']").fill("/srv/rows.txt")
    # The browser logs the 422 itself.
    with page.expect_console_message(lambda line: "422" in line.text):
        page.get_by_role("button", name="Launch", exact=True).click()
    console.clear()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("cannot cut models of the family bloom into stages")
    page.set_viewport_size({"width": 390, "height": 800})
    fits(page)
    alert.get_by_role("button", name="Launch with this plan").click()
    page.wait_for_url("**/jobs/*/")
    strategy = Job.objects.get().recipe_settings["strategy"]
    assert STRATEGIES[strategy].keeps_model_whole

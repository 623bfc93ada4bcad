"""The curves of a job, and several runs in one chart."""

import json
import os
import re

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from placement.models import Job
from reservations.notifications.live import user_group
from reservations.notifications.service import notify
from tests.pages import check_looks, elsewhere, eventually, fits
from tests.placement.browser.test_job import open_job

LOOKS = [("light", 1440), ("dark", 390)]


def picture(page: Page, name: str) -> None:
    """Store a picture if the environment requests it."""
    if folder := os.environ.get("PICTURES"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


def lines(count: int) -> str:
    made = [
        {
            "step": n,
            "steps": count,
            "loss": 9 / (n + 1) + (n % 3) / 10,
            "tokens_per_s": 12_345_678 + n,
            "state_bytes": 0,
        }
        for n in range(count)
    ]
    return "".join(json.dumps(one) + "\n" for one in made)


def test_curves_can_be_smoothed_and_read_without_a_pointer(
    page: Page, live_asgi, sign_in, alice, running, voice
):
    page.set_viewport_size({"width": 390, "height": 900})
    voice.says(lines(60), told=False)
    open_job(page, live_asgi, running, sign_in, alice)
    line = page.locator(".log-line").first
    expect(line).to_have_text(re.compile(r"^step 0 +steps 60 +loss 9 "))
    page.get_by_label("Raw JSON").check()
    expect(line).to_have_text(re.compile(r'^\{"step": 0'))
    page.get_by_label("Raw JSON").uncheck()
    picture(page, "job-log")
    page.get_by_role("tab", name="Charts").click()
    loss = page.locator(".chart", has_text="loss").first
    expect(loss.locator("canvas")).to_be_visible()
    expect(page.locator(".chart", has_text="state bytes")).to_have_count(0)
    expect(loss.locator(".u-legend")).not_to_contain_text("--")
    expect(loss.locator(".u-legend")).to_contain_text("0.35")
    page.get_by_label("Smoothing").fill("0.8")
    expect(loss.locator(".u-legend")).to_contain_text("as logged")
    page.get_by_label("Logarithmic axis").check()
    expect(loss.locator("canvas")).to_be_visible()
    over = loss.locator(".u-over")
    # It waits till the curve stays where it is.
    over.hover(position={"x": 40, "y": 40})
    page.mouse.down()
    over.hover(position={"x": 80, "y": 40})
    over.hover(position={"x": 120, "y": 40})
    page.mouse.up()
    page.get_by_role("button", name="Reset zoom").click()
    expect(page.get_by_role("button", name="Reset zoom")).to_be_hidden()
    page.mouse.move(0, 0)
    picture(page, "job-charts")
    check_looks(page)


@pytest.mark.parametrize(("theme", "width"), LOOKS)
def test_runs_are_chosen_in_the_list_and_laid_over_each_other(
    page: Page, live_asgi, sign_in, alice, running, voice, axe, theme, width
):
    page.emulate_media(color_scheme=theme)
    page.set_viewport_size({"width": width, "height": 900})
    voice.says(lines(60))

    def second() -> None:
        Job.objects.create(
            reservation=running.reservation,
            owner=alice,
            name="second run",
            kind="recipe",
            recipe="burn-in",
            recipe_settings={"seconds": 5.0},
            node=running.node,
            state="done",
            attempt=1,
        )

    elsewhere(second)
    sign_in(alice)
    page.goto(f"{live_asgi}/jobs/")
    picture(page, f"jobs-{width}")
    if width < 640:
        page.goto(f"{live_asgi}/jobs/compare/?job={running.pk}&job={running.pk + 1}")
    else:
        page.get_by_label("Compare job").first.check()
        page.get_by_label("Compare job").last.check()
        page.get_by_role("button", name="Compare").click()
    expect(page.locator("#charts canvas")).to_be_visible()
    expect(page.locator("#charts .u-legend")).to_contain_text(str(running.pk))
    expect(page.locator("#chart-none")).to_contain_text("1 of 2 runs logged no loss")
    page.get_by_label("Smoothing").fill("0.8")
    expect(page.locator("#charts .u-legend")).to_contain_text("as logged")
    heights = page.locator("#compare-form .select").evaluate_all(
        "(all) => all.map((one) => one.offsetHeight)"
    )
    assert max(heights) < 60, "a select is one line high"
    picture(page, f"compare-{width}")
    axe()
    fits(page)
    page.get_by_label("Metric").select_option("tokens_per_s")
    expect(page).to_have_url(re.compile("metric=tokens_per_s"))
    page.get_by_role("link", name="Final").click()
    expect(page).to_have_url(re.compile("sort=final"))


def test_the_forms_use_the_width_that_there_is(
    page: Page, live_asgi, live_cluster, sign_in, alice, running
):
    sign_in(alice)
    for where in ("/jobs/new/", "/serve/new/"):
        page.set_viewport_size({"width": 1440, "height": 900})
        page.goto(f"{live_asgi}{where}")
        picture(page, where.strip("/").replace("/", "-"))
        edge = page.evaluate(
            "() => Math.max(...[...document.querySelectorAll('.launch .card')]"
            ".map((card) => card.getBoundingClientRect().right))"
        )
        assert edge > 1200, "the right of the page is not empty"
        fits(page)
        page.set_viewport_size({"width": 390, "height": 900})
        fits(page)


def test_the_page_of_a_job_is_not_covered_by_the_news_of_its_end(
    page: Page, live_asgi, sign_in, alice, running, axe, redis_client
):
    def news(job_pk: int) -> None:
        notify(
            user=alice,
            kind="job_done",
            detail={"text": "The job is done.", "job": job_pk},
            now=timezone.now(),
        )

    page.set_viewport_size({"width": 390, "height": 844})
    open_job(page, live_asgi, running, sign_in, alice)
    expect(page.locator("#bell .badge")).to_have_count(0)
    listeners = f"*:group:{user_group(alice.pk)}"
    eventually(page, lambda: bool(redis_client.keys(listeners)))
    elsewhere(lambda: news(running.pk))
    expect(page.locator("#bell .badge")).to_have_text("1")
    expect(page.locator(".toast")).to_have_count(0)
    elsewhere(lambda: news(running.pk + 1))
    expect(page.locator(".toast")).to_have_count(1)
    axe()

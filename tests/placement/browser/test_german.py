"""Planning, jobs and served models in German, at a desk and on a phone."""

import os
import re

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from placement.models import Endpoint, Job, JobEvent, ModelFile, ServedModel
from tests.german import left_in_english
from tests.pages import elsewhere, fits, violations
from tests.placement.lab import plan_on


@pytest.fixture
def german(page: Page, live_asgi, live_cluster, alice, sign_in):
    """Return what opens a page as Alice, who reads German."""
    alice.language = "de"
    alice.save()
    sign_in(alice)

    def opened(path: str) -> None:
        page.goto(f"{live_asgi}{path}")
        expect(page.locator("html")).to_have_attribute("lang", "de")

    return opened


@pytest.fixture
def looked_at(page: Page):
    """Return what asks whether a page is German and fits.

    axe looks only at pages on which it does not look in English, in test_axe.py,
    test_plan_live.py and test_runs.py. The page is left at the size of a phone.
    """

    def look(name: str, *, axe: bool = False) -> None:
        assert left_in_english(page) == []
        for theme, width in (("light", 1440), ("dark", 390)):
            page.emulate_media(color_scheme=theme)
            page.set_viewport_size({"width": width, "height": 900})
            if folder := os.environ.get("PICTURES"):
                page.screenshot(path=f"{folder}/de-{name}-{width}.png", full_page=True)
            if axe:
                assert violations(page) == []
            fits(page)

    return look


@pytest.fixture
def failed(running) -> Job:
    """A Job whose reasons are stored as English texts."""
    now = timezone.now()
    running.state, running.exit_code, running.ended_at = "failed", 3, now
    running.reason = "the reservation's end"
    running.save()
    JobEvent.objects.create(
        job=running,
        old="running",
        new="failed",
        actor="node-a",
        reason="waits for job 7, which is ahead in the queue",
    )
    return running


def test_a_plan_is_made_and_kept_in_german(page: Page, german, looked_at, console):
    german("/plan/")
    expect(page.locator("#verdict")).to_contain_text("Passt auf")
    looked_at("plan")
    page.locator("#id_batch").fill("64")
    expect(page.locator("#plan-result")).to_contain_text("Erste Wahl")
    page.locator("#id_batch").fill("viele")
    expect(page.locator("#e-batch")).not_to_be_empty()
    assert left_in_english(page) == []
    page.locator("#id_batch").fill("8")
    expect(page.locator("#e-batch")).to_be_empty()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    page.locator("[name=keep]").first.click()
    page.wait_for_url(re.compile(r"/plan/\d+"))
    looked_at("plan-kept")


def test_a_stored_plan_is_read_in_german(page: Page, german, looked_at, alice, console):
    first = elsewhere(plan_on, alice, "pipeline")
    second = elsewhere(plan_on, alice, "ddp")
    german(f"/plan/{first.pk}/")
    expect(page.locator("main")).to_contain_text("Das Modell ist in")
    looked_at("plan-stored")
    german(f"/plan/compare/?a={first.pk}&b={second.pk}")
    expect(page.locator("#compare")).to_be_visible()
    looked_at("plan-compare")
    german("/plan/kept/")
    looked_at("plan-list")


def test_jobs_are_launched_and_read_in_german(
    page: Page, german, looked_at, running, console
):
    for path, name in (
        ("/jobs/", "jobs"),
        ("/jobs/?state=lost", "jobs-none"),
        ("/jobs/?whose=others", "jobs-others"),
        ("/jobs/new/", "job-new"),
        ("/jobs/compare/", "job-compare"),
        (f"/jobs/{running.pk}/", "job"),
    ):
        german(path)
        page.wait_for_load_state("networkidle")
        looked_at(name)
    german("/jobs/new/")
    # The browser logs the 422 itself.
    with page.expect_console_message(lambda line: "422" in line.text):
        page.locator("main form button[type=submit]").click()
    console.clear()
    expect(page.locator(".notice-bad")).to_contain_text("nicht gestartet")
    assert left_in_english(page) == []
    page.locator("#id_name").fill("Versuch")
    page.locator("[name=what][value=burn-in]").check()
    page.locator("main form button[type=submit]").click()
    page.wait_for_url(re.compile(r"/jobs/\d+/"))
    expect(page.locator("h1")).to_have_text("Versuch")


def test_why_a_job_failed_is_read_in_german(
    page: Page, german, looked_at, failed, console
):
    german(f"/jobs/{failed.pk}/")
    expect(page.locator("#failure-title")).to_have_text("Exit-Code 3")
    expect(page.locator("#failure-reason")).to_have_text("Ende der Reservierung")
    page.locator("#tab-events").click()
    expect(page.locator("#job-events")).to_contain_text(
        "wartet auf Job 7, der vor ihm in der Reihe ist"
    )
    looked_at("job-failed", axe=True)


def test_served_models_are_read_in_german(
    page: Page, german, looked_at, running, alice, live_cluster, console
):
    def served() -> None:
        Job.objects.filter(pk=running.pk).update(kind="serve", recipe="serve")
        endpoint = Endpoint.objects.create(
            job=running, gpu=live_cluster.gpus[0], memory_bytes=2**33
        )
        file = ModelFile.objects.create(
            owner=alice,
            name="net.onnx",
            sha256="0" * 64,
            size_bytes=2**20,
            signature={"inputs": [], "outputs": [], "opsets": {}},
            weight_bytes=2**20,
        )
        ServedModel.objects.create(
            endpoint=endpoint,
            file=file,
            name="net",
            added_by=alice,
            memory_bytes=2**28,
        )

    elsewhere(served)
    for path, name in (
        ("/serve/", "serves"),
        ("/serve/new/", "serve-new"),
        (f"/serve/{running.pk}/", "serve"),
    ):
        german(path)
        page.wait_for_load_state("networkidle")
        looked_at(name, axe=name == "serve")
    # No server runs behind the endpoint: the browser logs that its figures are away.
    assert all("503" in line for line in console), console
    console.clear()

"""axe-core finds nothing on placement's pages: light, dark, and on a phone."""

from datetime import timedelta

from django.utils import timezone
from playwright.sync_api import Page, expect

from placement.models import Backfill, Job, PlanOutcome, ResultFile
from placement.protocol.job_lifecycle import JobState
from placement.rules.backfill_rules import GapState
from reservations.models import User
from tests.pages import check_looks, check_themes


def test_the_planning_page(page: Page, live_asgi, live_cluster, alice, sign_in):
    sign_in(alice)
    page.goto(f"{live_asgi}/plan/?known=mistral-7b&batch=4")
    expect(page.locator("#verdict")).to_be_visible()
    page.locator(".plan-why").evaluate_all(
        "(all) => all.forEach((one) => (one.open = true))"
    )
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    check_looks(page)
    page.get_by_label("Batch").fill("x")
    expect(page.locator("#e-batch")).to_be_visible()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    check_looks(page)


def in_gaps_and_measured(job: Job) -> None:
    """Make a Job the last of two stretches in gaps, with an outcome of its plan."""
    now = timezone.now()
    row = Backfill.objects.create(
        owner=job.owner,
        membership=job.reservation.membership,
        name=job.name,
        launch={},
        shortest_seconds=600,
        attempt=2,
        state=GapState.RUNNING,
    )
    Job.objects.create(
        reservation=job.reservation,
        owner=job.owner,
        name=job.name,
        kind=job.kind,
        recipe=job.recipe,
        node=job.node,
        backfill=row,
        state=JobState.DONE,
        ended_at=now,
    )
    Job.objects.filter(pk=job.pk).update(backfill=row)
    PlanOutcome.objects.create(
        job=job,
        strategy="ddp",
        gpu_class="A100 80 GB",
        precision="bf16",
        simulated=False,
        predicted_step_seconds=0.2,
        prior_step_seconds=0.2,
        predicted_units_per_second=1e4,
        step_seconds=0.22,
        step_ratio=1.1,
        units_per_second=9e3,
        memory_ratio=0.97,
        high_ratio=0.9,
        settled_at=now,
        gpus=[{"label": "node-a:0"}],
        steps_seen=90,
    )


def test_jobs_and_a_new_job(page: Page, live_asgi, running, alice, sign_in, console):
    in_gaps_and_measured(running)
    User.objects.update(is_superuser=True)
    sign_in(alice)
    for address in (
        *("/jobs/", "/jobs/?q=nothing", "/jobs/new/"),
        *("/serve/", "/serve/?q=nothing", "/serve/new/"),
        *(f"/jobs/{running.pk}/", "/jobs/measured/"),
    ):
        page.goto(live_asgi + address)
        check_looks(page)
    page.goto(f"{live_asgi}/jobs/new/")
    page.get_by_text("Settings of Tiny transformer").click()
    page.get_by_label("Layers", exact=True).fill("x")
    with page.expect_console_message(
        lambda line: line.text.endswith("(Unprocessable Entity)")
    ):
        page.get_by_role("button", name="Launch").click()
    console.clear()
    expect(page.get_by_text("must be a number")).to_be_visible()
    check_looks(page)


def test_a_job_in_every_tab(page: Page, live_asgi, running, voice, alice, sign_in):
    voice.says("\x1b[31mred\x1b[32m green\x1b[33m yellow\x1b[34m blue\x1b[0m\n" * 3)
    voice.says("".join(f"step={n} loss={n}\n" for n in range(90)))
    now = timezone.now()
    Job.objects.update(
        progress_done=30,
        progress_total=90,
        progress_at=now,
        progress_from=0,
        progress_from_at=now - timedelta(seconds=30),
    )
    for name, refused in (("loss.svg", ""), ("out", "is a link")):
        ResultFile.objects.create(
            job=running,
            attempt=1,
            path=name,
            size_bytes=9,
            refused=refused,
            complete_at=now,
        )
    sign_in(alice)
    page.goto(f"{live_asgi}/jobs/{running.pk}/")
    expect(page.locator(".log-line")).to_have_count(93)
    expect(page.locator("#progress-words")).to_contain_text("30 of 90, 33 %, about")
    for tab in ("Log", "Charts", "Files", "Events", "Settings"):
        page.get_by_role("tab", name=tab).click()
        check_looks(page)


def test_a_failed_job(page: Page, live_asgi, running, alice, sign_in):
    Job.objects.update(
        state=JobState.FAILED,
        exit_code=1,
        reason="disk full",
        ended_at=timezone.now(),
        last_lines=["Traceback", "boom"],
    )
    sign_in(alice)
    page.goto(f"{live_asgi}/jobs/{running.pk}/")
    expect(page.locator("#failure-lines")).to_contain_text("boom")
    check_themes(page)

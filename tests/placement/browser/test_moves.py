"""A proposed move on the Job's page: it appears, explains a yes, and is decided."""

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from placement.jobs import job_broadcast
from placement.models import Job, MoveDecision, StoredPlan
from tests.pages import elsewhere, fits, listens

REASON = "Someone else uses node-a:0; it can move to node-a:1, at 0.5 s a step."


@pytest.fixture
def planned(running, alice):
    """The running Job with a Plan, which may start again from the beginning."""
    stored = StoredPlan.objects.create(
        owner=alice, title="x", spec={}, workload={}, plan={"shards": []}
    )
    Job.objects.filter(pk=running.pk).update(plan=stored, restart="fresh")
    running.refresh_from_db()
    return running


def propose(job):
    now = timezone.now()
    MoveDecision.objects.create(
        job=job,
        at=now,
        seen_at=now,
        cause="intruder",
        state="proposed",
        reason=REASON,
        from_gpus=["node-a:0"],
        to_gpus=["node-a:1"],
        gain_seconds=600.0,
        cost_seconds=90.0,
    )
    job_broadcast.publish_job(job.pk)


def test_a_proposal_appears_by_itself_and_a_yes_is_kept(
    page: Page, live_asgi, sign_in, console, alice, planned
):
    sign_in(alice)
    it_listens = listens(page, f"/ws/jobs/{planned.pk}/")
    page.goto(f"{live_asgi}/jobs/{planned.pk}/#moves")
    it_listens()
    expect(page.get_by_text("Not checked yet")).to_be_visible()
    expect(page.locator("#job-proposal")).to_be_hidden()
    elsewhere(propose, planned)
    expect(page.locator("#proposal-reason")).to_have_text(REASON)
    expect(page.locator("#proposal-words")).to_contain_text("from the beginning")
    expect(page.locator("#job-moves tr")).to_contain_text("10 min for 1 min")
    page.locator("#move-accept").click()
    page.get_by_role("button", name="Stop it here and start it there").click()
    expect(page.locator("#job-proposal")).to_be_hidden()
    expect(page.locator("#job-moves tr")).to_contain_text("accepted by alice")


def test_what_may_happen_to_a_job_is_said_on_its_page(
    page: Page, live_asgi, sign_in, console, axe, alice, planned
):
    elsewhere(propose, planned)
    sign_in(alice, "dark")
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(f"{live_asgi}/jobs/{planned.pk}/#moves")
    page.locator("#restart").select_option("")
    expect(page.locator("#move-accept")).to_be_disabled()
    with page.expect_response("**/moves"):
        page.locator("#may-move").check()
    noted = page.locator(".toast", has_text="Saved.").last
    expect(noted).to_be_visible()
    axe()
    fits(page)
    page.locator("#move-decline").click()
    expect(page.locator("#job-moves tr")).to_contain_text("declined by alice")
    page.reload()
    expect(page.locator("#may-move")).to_be_checked()

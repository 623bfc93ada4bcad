"""The admin's pages: axe-core finds nothing, and what is pressed there works."""

import re
from datetime import timedelta

from django.utils import timezone
from playwright.sync_api import Page, expect

from reservations.models import User
from reservations.store.audit_log import audit_act
from telemetry.models import Alert
from tests.factories import make_account, make_user
from tests.gpuportal.browser.conftest import LiveCluster
from tests.pages import check_looks, check_phone, fits


def busy_site(live_cluster: LiveCluster, omar: User) -> User:
    """Several tasks of the operator, and some past actions."""
    now = timezone.now()
    Alert.objects.create(
        rule="lost", gpu=live_cluster.gpus[0], opened_at=now, last_seen_at=now
    )
    nora = make_user("nora")
    User.objects.create(username="fresh", password="!x")
    for verb, subject in (
        ("node.drain", f"node:{live_cluster.gpus[0].node_id}"),
        ("people.changed", f"user:{nora.pk}"),
        ("alert.acknowledged", "alert:1"),
    ):
        audit_act(
            verb=verb,
            subject=subject,
            actor=omar,
            now=now - timedelta(hours=2),
            reason="new fans for the left side",
        )
    return nora


def test_the_pages_of_the_operator(
    page: Page, live_asgi: str, live_cluster: LiveCluster, omar, sign_in
):
    nora = busy_site(live_cluster, omar)
    sign_in(omar)
    # The admin's week in tests/flows/test_weeks.py looks at all but one on a desktop.
    for path, check in (
        ("manage/people/new/", check_looks),
        ("manage/", check_phone),
        ("manage/audit/", check_phone),
        ("manage/people/", check_phone),
        (f"manage/people/{nora.pk}/", check_phone),
    ):
        page.goto(f"{live_asgi}/{path}")
        expect(page.locator("h1")).to_be_visible()
        check(page)


def test_a_password_link_is_made_and_copied(
    page: Page, live_asgi: str, live_cluster: LiveCluster, omar, sign_in
):
    nora = busy_site(live_cluster, omar)
    sign_in(omar)
    page.goto(f"{live_asgi}/manage/")
    page.get_by_role("link", name="See people: 2 people in no group").click()
    page.get_by_role("link", name="Nora", exact=True).click()
    page.get_by_role("button", name="Make a password link").click()
    expect(page.get_by_label("Password link")).to_have_value(
        # The whole address, ready to be sent.
        re.compile(rf"^{live_asgi}/welcome/.+/$")
    )
    assert nora.invitations.count() == 1


def test_the_tree_of_accounts_folds_and_stays_folded(
    page: Page, live_asgi: str, live_cluster: LiveCluster, omar, sign_in, axe
):
    top = make_account("institute")
    vision = make_account("vision", parent=top)
    make_account("robots", parent=vision)
    make_account("nlp", parent=top)
    sign_in(omar)
    page.goto(f"{live_asgi}/manage/accounts/")
    robots = page.locator('tr[data-account="robots"]')
    expect(robots).to_be_visible()
    heights = page.locator("tr[data-account]").evaluate_all(
        "rows => rows.map((row) => row.querySelector('th').clientHeight)"
    )
    assert max(heights) < 48, "each row is one line"
    axe()
    fold = page.get_by_role("button", name="Subgroups of vision")
    expect(fold).to_have_attribute("aria-expanded", "true")
    fold.press("Enter")
    expect(fold).to_have_attribute("aria-expanded", "false")
    expect(robots).to_be_hidden()
    expect(page.locator('tr[data-account="nlp"]')).to_be_visible()
    page.reload()
    expect(robots).to_be_hidden()
    page.get_by_role("button", name="Subgroups of institute").click()
    expect(page.locator("tr[data-account]:visible")).to_have_count(1)
    page.get_by_role("button", name="Subgroups of institute").click()
    page.get_by_role("button", name="Subgroups of vision").click()
    expect(robots).to_be_visible()
    page.set_viewport_size({"width": 360, "height": 800})
    fits(page)

"""German pages: nothing is left in English, forms still post, no error is logged."""

import re

import pytest
from django.conf import settings
from playwright.sync_api import Page, expect

from tests.german import left_in_english

PAGES = [
    *("/", "/?view=table", "/mine/", "/free/", "/help/", "/search?q=node", "/me/"),
    *("/alerts/", "/nodes/node-a/", "/nodes/node-a/history/", "/no/such/page/"),
]
MANAGED = [
    *("/manage/", "/manage/people/", "/manage/people/new/", "/manage/walls/"),
    "/manage/audit/",
]


@pytest.fixture
def german(alice, sign_in):
    """Alice, who reads German, signed in."""
    alice.language = "de"
    alice.save()
    sign_in(alice)
    return alice


def test_no_page_has_an_english_sentence_left(
    page: Page, live_asgi, german, live_cluster, console
):
    for path in PAGES:
        page.goto(f"{live_asgi}{path}")
        expect(page.locator("html")).to_have_attribute("lang", "de")
        if path in {"/", "/?view=table"}:
            expect(page.locator("#live")).to_contain_text("live")
        page.wait_for_load_state("networkidle")
        assert left_in_english(page) == [], path
        if path == "/no/such/page/":
            console.clear()  # the browser logs the 404 itself
        assert console == [], path
    page.goto(f"{live_asgi}/gpus/{live_cluster.gpus[0].pk}/")
    expect(page.locator("#gpu-live")).to_contain_text("live")
    assert left_in_english(page) == []


def test_no_page_of_manage_has_an_english_sentence_left(
    page: Page, live_asgi, german, live_cluster, console
):
    german.is_superuser = german.is_staff = True
    german.save()
    for path in MANAGED:
        page.goto(f"{live_asgi}{path}")
        assert left_in_english(page) == [], path
        assert console == [], path


def test_a_visitor_switches_in_the_footer_and_a_user_back_on_settings(
    page: Page, live_asgi, alice, sign_in, console, axe
):
    page.goto(f"{live_asgi}/login/")
    page.get_by_role("button", name="Deutsch").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Anmelden")
    assert left_in_english(page) == []
    sign_in(alice)
    page.goto(f"{live_asgi}/help/?from=here")
    page.get_by_role("button", name="Tastenkürzel").click()
    expect(page.get_by_role("dialog")).to_contain_text("Überall")
    assert left_in_english(page) == []
    page.keyboard.press("Escape")
    page.goto(f"{live_asgi}/me/")
    axe()
    page.get_by_label("Sprache der Seiten und Mails").select_option("en")
    page.locator("#language").get_by_role("button").click()
    expect(page.locator("html")).to_have_attribute("lang", "en")
    alice.refresh_from_db()
    assert alice.language == "en"
    names = {cookie["name"]: cookie for cookie in page.context.cookies()}
    assert names[settings.LANGUAGE_COOKIE_NAME]["httpOnly"]


def test_a_token_is_made_and_a_mistake_is_told_in_german(
    page: Page, live_asgi, german, console
):
    page.goto(f"{live_asgi}/me/")
    page.get_by_role("button", name="Token erstellen").click()
    expect(page.locator(".error").first).to_have_text("Fülle das aus.")
    console.clear()  # the browser logs the 422 itself
    page.get_by_label("Wofür es ist").fill("Skript")
    page.get_by_role("button", name="Token erstellen").click()
    expect(page.locator("#fresh-token")).to_have_value(re.compile("^gp_"))
    assert left_in_english(page) == []

"""Signed out while typing: the page reports it, leads back, and nothing is lost."""

import pytest
from django.contrib.sessions.models import Session
from playwright.sync_api import Page, Route, expect

from tests.factories import PASSWORD, make_gpus, make_node

TYPED = "learning rate sweep, third try"


@pytest.fixture
def form(page: Page, live_asgi: str, alice, sign_in) -> Page:
    """The form for a job, partly filled in."""
    make_gpus(1, make_node("node-a"))
    sign_in(alice)
    page.goto(f"{live_asgi}/jobs/new/")
    page.get_by_label("Name", exact=True).fill(TYPED)
    # A call under way would notice the ended session before the button does.
    page.wait_for_load_state("networkidle")
    return page


def sign_in_again(page: Page) -> None:
    page.get_by_label("User name").fill("alice")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()


def test_a_session_that_ended_leads_back_to_the_form_with_what_was_typed(form: Page):
    Session.objects.all().delete()
    form.locator("#launch [type=submit]").first.click()
    expect(form.get_by_text("You were signed out.")).to_be_visible()
    sign_in_again(form)
    form.wait_for_url("**/jobs/new/")
    expect(form.get_by_label("Name", exact=True)).to_have_value(TYPED)
    expect(form.get_by_text("What you typed before is back.")).to_be_visible()
    form.get_by_role("button", name="Discard").click()
    expect(form.get_by_label("Name", exact=True)).to_have_value("")
    form.reload()
    expect(form.get_by_label("Name", exact=True)).to_have_value("")


def test_a_form_whose_cookies_are_gone_says_so_and_leads_back(form: Page, console):
    session = [one for one in form.context.cookies() if one["name"] == "sessionid"]
    form.context.clear_cookies()
    form.context.add_cookies(session)
    form.locator("#launch [type=submit]").first.click()
    expect(form.get_by_role("heading", name="This form has expired")).to_be_visible()
    form.get_by_role("link", name="Back to the form").click()
    form.wait_for_url("**/jobs/new/")
    expect(form.get_by_label("Name", exact=True)).to_have_value(TYPED)
    assert len(console) == 1
    assert "403" in console.pop()  # the browser's own note on the answer


def test_the_way_back_is_taken_before_the_scripts_are_there(form: Page, console):
    session = [one for one in form.context.cookies() if one["name"] == "sessionid"]
    form.context.clear_cookies()
    form.context.add_cookies(session)
    held: list[Route] = []

    def hold(route: Route) -> None:
        """Hold the script of the intermediate page back."""
        if held:
            route.continue_()
        else:
            held.append(route)

    form.route("**/bundle/portal-*.js", hold)
    form.locator("#launch [type=submit]").first.click(no_wait_after=True)
    back = form.get_by_role("link", name="Back to the form")
    expect(back).to_be_visible()
    assert held
    back.click()
    expect(form.get_by_label("Name", exact=True)).to_have_value(TYPED)
    assert len(console) == 1
    assert "403" in console.pop()


def test_a_fresh_visit_of_the_form_is_empty(form: Page, live_asgi):
    form.goto(f"{live_asgi}/me/")
    form.goto(f"{live_asgi}/jobs/new/")
    expect(form.get_by_label("Name", exact=True)).to_have_value("")


def test_a_script_whose_cookies_are_gone_leads_to_the_sign_in_page(
    page: Page, live_asgi, alice, sign_in, console
):
    sign_in(alice)
    page.goto(f"{live_asgi}/me/")
    page.context.clear_cookies()
    page.evaluate(
        """async () => {
          const { api } = await import("/static/js/api.js");
          await api("POST", "/reservations/1/cancel", {}).catch(() => null); }"""
    )
    expect(page.get_by_text("You were signed out.")).to_be_visible()
    sign_in_again(page)
    page.wait_for_url("**/me/")
    assert len(console) == 1
    assert "403" in console.pop()


def test_a_wrong_password_is_said_in_few_words(page: Page, live_asgi, alice):
    page.goto(f"{live_asgi}/login/")
    page.get_by_label("User name").fill("alice")
    page.get_by_label("Password").fill("no")
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_role("alert")).to_have_text("Wrong user name or password.")


def test_the_page_offers_the_zone_of_the_device(browser, live_asgi, alice):
    context = browser.new_context(base_url=live_asgi, timezone_id="Europe/Berlin")
    page = context.new_page()
    page.goto("/login/")
    sign_in_again(page)
    banner = page.locator("#zone-banner")
    expect(banner).to_contain_text("Your device uses Europe/Berlin.")
    banner.get_by_role("button", name="Use Europe/Berlin").click()
    expect(page.get_by_text("Times are now shown in Europe/Berlin.")).to_be_visible()
    expect(page.locator("#zone-banner")).to_have_count(0)
    assert page.evaluate("document.documentElement.dataset.timeZone") == "Europe/Berlin"
    context.close()

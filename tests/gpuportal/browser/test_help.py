"""Words that explain themselves, the list of shortcuts, and the help page."""

from playwright.sync_api import Page, expect

from gpuportal.pages import bundle
from tests.factories import make_pool
from tests.pages import fits


def test_a_word_explains_itself_by_keyboard_and_escape_closes_it(
    page: Page, live_asgi, alice, sign_in, console
):
    make_pool("A100 80GB", weight=10)
    sign_in(alice)
    page.goto(f"{live_asgi}/standing/")
    word = page.locator('.term[data-term="credits"]').first
    word.press("Enter")
    card = page.locator("#term-credits")
    expect(card).to_be_visible()
    expect(card).to_contain_text("8 GPU-hours × 10 (A100 80GB) = 80 credits")
    button, shown = word.bounding_box(), card.bounding_box()
    assert button and shown
    assert abs(shown["y"] - button["y"]) < shown["height"] + 60
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()


def test_a_word_made_by_a_script_fetches_its_explanation(
    page: Page, live_asgi, alice, sign_in, console, monkeypatch
):
    # The page and this test share one module of terms, which is so without a bundle.
    monkeypatch.setattr(bundle, "current", dict)
    sign_in(alice)
    page.goto(f"{live_asgi}/me/")
    page.evaluate(
        """async () => {
          const { term, price } = await import("/static/js/terms.js");
          const title = document.querySelector("h1");
          title.append(term("flex"), price("80 credits", "8 × 10 = 80")); }"""
    )
    page.locator('h1 [data-term="flex"]').click()
    expect(page.locator("#term-flex")).to_contain_text("Free time that may be taken")
    page.locator("h1 [data-sum]").click()
    expect(page.locator("#term-flex")).to_be_hidden()
    expect(page.locator(".term-card p", has_text="8 × 10 = 80")).to_be_visible()


def test_keys_go_to_pages_and_a_question_mark_lists_them(
    page: Page, live_asgi, alice, sign_in, console
):
    sign_in(alice)
    page.goto(f"{live_asgi}/me/")
    page.keyboard.press("?")
    listed = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(listed).to_contain_text("Calendar")
    page.keyboard.press("g")
    page.keyboard.press("c")
    expect(listed).to_be_visible()  # not under a dialog
    page.keyboard.press("Escape")
    page.get_by_label("What it is for").focus()
    page.keyboard.type("g c ?")
    expect(listed).to_have_count(0)
    assert page.url.endswith("/me/")
    page.locator("h1").click()
    page.keyboard.press("g")
    page.keyboard.press("h")
    page.wait_for_url("**/help/")
    expect(page.locator("#shortcut-list")).to_contain_text("g then b")


def test_single_keys_can_be_switched_off(page: Page, live_asgi, alice, sign_in):
    sign_in(alice)
    page.goto(f"{live_asgi}/me/")
    page.keyboard.press("?")
    page.get_by_label("Use single-key shortcuts in this browser").uncheck()
    page.get_by_role("button", name="Close").click()
    page.keyboard.press("/")
    expect(page.locator("#search")).not_to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()


def test_the_help_page_is_clean_for_axe_and_fits_a_phone(
    page: Page, live_asgi, alice, sign_in, axe
):
    sign_in(alice)
    page.set_viewport_size({"width": 360, "height": 780})
    page.goto(f"{live_asgi}/help/")
    expect(page.locator("#shortcut-list")).to_contain_text("g then b")
    axe()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_reference_opens_at_the_operation_that_a_link_names(
    page: Page, live_asgi, alice, sign_in, console, axe
):
    sign_in(alice)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{live_asgi}/api/v1/docs#post_reservations")
    book = page.locator("#post_reservations")
    expect(book).to_be_visible()
    expect(book).to_contain_text('"gpu_ids": [1]')
    expect(page.locator("#get_slots")).to_be_hidden()
    page.get_by_text("/api/v1/slots", exact=True).click()
    expect(page.locator("#get_slots")).to_contain_text("integer, 1 to 20")
    axe()
    fits(page)

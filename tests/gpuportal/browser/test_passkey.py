"""A passkey of Chromium's own authenticator is added, and then signs in."""

import pytest
from playwright.sync_api import Page, expect

from reservations.models import SecondFactor
from tests.factories import PASSWORD, make_user

AUTHENTICATOR = {
    "protocol": "ctap2",
    "transport": "internal",
    "hasUserVerification": True,
    "isUserVerified": True,
    "automaticPresenceSimulation": True,
}


@pytest.mark.timeout(400)
def test_a_passkey_is_added_and_signs_in(page: Page, live_asgi: str, console, axe):
    make_user("ada")
    # No browser takes a passkey for an IP address.
    site = live_asgi.replace("127.0.0.1", "localhost")
    devtools = page.context.new_cdp_session(page)
    devtools.send("WebAuthn.enable")
    devtools.send("WebAuthn.addVirtualAuthenticator", {"options": AUTHENTICATOR})

    def sign_in() -> None:
        page.goto(f"{site}/login/")
        page.fill("#id_username", "ada")
        page.fill("#id_password", PASSWORD)
        page.click(".login-box form button[type=submit]")

    sign_in()
    expect(page).to_have_url(f"{site}/mine/")
    page.goto(f"{site}/me/second-factor/")
    page.fill("#passkey-name", "laptop")
    page.fill("#passkey-password", PASSWORD)
    page.get_by_role("button", name="Add a passkey").click()
    codes = page.locator("#fresh-codes")
    expect(codes).to_be_visible()
    assert len(codes.input_value().split()) == 10
    axe()
    page.context.clear_cookies()
    sign_in()
    expect(page).to_have_url(f"{site}/second-factor/")
    axe()
    page.get_by_role("button", name="Use a passkey").click()
    expect(page).to_have_url(f"{site}/mine/")
    factor = SecondFactor.objects.get()
    assert (factor.name, factor.rp_id) == ("laptop", "localhost")
    assert factor.counter > 1

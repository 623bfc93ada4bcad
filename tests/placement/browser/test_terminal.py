"""A student opens the terminal of a reservation, types, and comes back to it."""

from urllib.parse import urlsplit

import pytest
from django.conf import settings as site
from playwright.sync_api import Page, expect

from placement.models import Job, Workspace
from tests.pages import WAIT_MS, elsewhere
from tests.placement import nodes
from tests.placement.lab import signed_in
from tests.placement.workspace.workspace_nodes import require_tmux, reserved_node

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lab(node, redis_client, live_asgi, alice, settings):
    """Node node1 with Alice's active reservation of two Gpus."""
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    made = reserved_node(node, redis_client, live_asgi, alice)
    yield made
    elsewhere(made.close)


def until_ended(lab):
    def ended():
        lab.tell()
        return Workspace.objects.get().job.state == Job.State.DONE

    nodes.until(ended, what="the end of the terminal's job")


def test_a_student_types_in_the_terminal_and_finds_it_again(
    page: Page, lab, live_asgi, alice, axe
):
    require_tmux()
    told = []
    page.on("console", lambda one: told.append(one.text))
    session = elsewhere(signed_in, alice).cookies["sessionid"].value
    host = urlsplit(live_asgi).hostname
    cookie = {"name": site.SESSION_COOKIE_NAME, "value": session}
    page.context.add_cookies([cookie | {"domain": host, "path": "/"}])
    sockets = []

    def pass_on(socket):
        sockets.append(socket)
        socket.connect_to_server()

    page.route_web_socket("**/ws/terminal/**", pass_on)
    page.goto(f"{live_asgi}/reservations/{lab.held.pk}/")
    page.get_by_role("link", name="Terminal", exact=True).click()
    axe()
    page.get_by_role("button", name="Start the terminal").click()
    elsewhere(lab.start, Workspace.objects.get())
    state = page.locator("#terminal-state")
    # The page notices without a reload that it runs.
    expect(state).to_have_text("Connected.", timeout=WAIT_MS)
    screen = page.locator("#terminal-screen .xterm-rows")
    page.keyboard.type("echo job-$GPUPORTAL_GPU_COUNT-$((40+2))\n")
    expect(screen).to_contain_text("job-2-42", timeout=WAIT_MS)
    axe()
    # The portal restarts. The page comes back by itself, tmux has everything, and what
    # was typed meanwhile is not sent.
    sockets[0].close(code=1012)
    expect(state).to_contain_text("The connection is lost.")
    page.keyboard.type("echo never\n")
    nodes.until(lambda: page.wait_for_timeout(50) or len(sockets) == 2, what="a socket")
    expect(state).to_contain_text("Connected again.", timeout=WAIT_MS)
    expect(screen).to_contain_text("job-2-42", timeout=WAIT_MS)
    page.keyboard.type("never\n")
    page.locator("#terminal-screen textarea").focus()
    expect(state).to_have_text("Connected.")
    page.keyboard.type("echo $((6*7))-again\n")
    expect(screen).to_contain_text("42-again", timeout=WAIT_MS)
    expect(screen).not_to_contain_text("never")
    page.reload()
    expect(screen).to_contain_text("job-2-42", timeout=WAIT_MS)
    page.keyboard.press("Control+Shift+Enter")
    expect(page.get_by_role("button", name="Stop")).to_be_focused()
    page.locator("#terminal-screen textarea").focus()
    page.keyboard.type("exit\n")
    expect(state).to_contain_text("closed by the terminal", timeout=WAIT_MS)
    elsewhere(until_ended, lab)
    again = page.get_by_role("button", name="Start the terminal")
    expect(again).to_be_visible(timeout=WAIT_MS)
    assert not [text for text in told if "Content Security Policy" in text], told

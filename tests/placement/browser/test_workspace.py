"""A student opens JupyterLab from a reservation, and runs a cell on its GPUs."""

import time
from urllib.parse import urlsplit

import pytest
from django.conf import settings as site
from playwright.sync_api import Page, expect

from placement.models import Workspace
from tests.pages import WAIT_MS, elsewhere
from tests.placement.lab import signed_in
from tests.placement.nodes import until
from tests.placement.workspace.workspace_nodes import ENVIRONMENT, reserved_node

pytestmark = pytest.mark.django_db(transaction=True)
START_MS = 120_000
"""The longest start of JupyterLab on a busy machine."""
ATTACKS = """async (portal) => {
  const told = {};
  const tell = async (name, work) => {
    told[name] = await work().then((value) => value, (error) => error.name);
  };
  const mine = { credentials: "include" };
  await tell("read", async () => (await fetch(`${portal}/me/`, mine)).status);
  const body = new URLSearchParams({ language: "de" });
  const post = { ...mine, method: "POST", mode: "no-cors", body };
  await tell("sent", async () => (await fetch(`${portal}/language/`, post)).type);
  await tell("socket", () => new Promise((done) => {
    const socket = new WebSocket(`${portal.replace("http", "ws")}/ws/board/`);
    socket.onopen = () => done("open");
    socket.onerror = () => done("refused");
  }));
  for (const name of ["sessionid", "csrftoken"])
    for (const domain of ["localhost", ".localhost", new URL(portal).host])
      document.cookie = `${name}=evil; domain=${domain}; path=/`;
  told.cookies = document.cookie;
  return told;
}"""


@pytest.fixture
def lab(node, redis_client, live_asgi, alice, settings):
    """Node node1 with Alice's active reservation of two Gpus."""
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    settings.WORKSPACE_ORIGIN = f"http://*.localhost:{urlsplit(live_asgi).port}"
    made = reserved_node(node, redis_client, live_asgi, alice)
    yield made
    elsewhere(made.close)


def test_jupyter_runs_a_cell_and_its_page_reaches_nothing_of_the_portal(
    page: Page, lab, live_web, live_asgi, alice, axe
):
    # The same site as the workspace, which is the harder case.
    portal = live_asgi.replace("127.0.0.1", "localhost")
    session = elsewhere(signed_in, alice).cookies["sessionid"].value
    cookie = {"name": site.SESSION_COOKIE_NAME, "value": session, "url": portal}
    page.context.add_cookies([cookie])
    page.goto(f"{portal}/reservations/{lab.held.pk}/")
    panel = page.locator("#workspaces")
    panel.get_by_label("Environment").fill(ENVIRONMENT)
    panel.get_by_label("GPUs").fill("1")
    panel.get_by_role("button", name="Start JupyterLab").click()
    expect(panel).to_contain_text("queued")
    elsewhere(lab.start, Workspace.objects.get())
    with page.context.expect_page() as opening:
        # The panel shows the button without a reload.
        panel.get_by_role("button", name="Open JupyterLab").click(timeout=WAIT_MS)
    page.evaluate("scrollTo(0, 0)")  # no header over a button
    axe()
    there = opening.value
    there.wait_for_url("**/lab**", timeout=START_MS)
    label = Workspace.objects.get().label
    assert urlsplit(there.url).hostname == f"w-{label}.localhost"
    there.locator(".jp-LauncherCard[title*='Python 3']").first.click(timeout=START_MS)
    idle = there.get_by_role("button", name="Python 3 (ipykernel) | Idle")
    expect(idle).to_be_visible(timeout=START_MS)
    cell = there.locator(".jp-Notebook .cm-content").first
    words = "import os; print(6 * 7, os.environ['GPUPORTAL_GPU_COUNT'])"
    cell.fill(words)
    expect(cell).to_have_text(words)
    cell.press("Shift+Enter")
    expect(there.locator(".jp-OutputArea-output").first).to_have_text(
        "42 1", timeout=START_MS
    )
    # The portal restarts. The page comes back, and the kernel keeps its variables.
    dialog = there.locator(".jp-Dialog").get_by_role("button", name="Close")
    there.add_locator_handler(dialog, lambda button: button.click())
    elsewhere(live_web.stop)
    elsewhere(live_web.start)
    cell.fill("print(os.environ['GPUPORTAL_GPU_COUNT'] * 3)")
    cell.press("Shift+Enter")
    expect(there.locator(".jp-OutputArea-output").first).to_have_text(
        "111", timeout=START_MS
    )
    kernels, (folder,) = lab.keeper.kernels, lab.keeper._running()
    worked = until(
        lambda: elsewhere(kernels.ask, [folder]) or kernels.worked_at(folder),
        what="the work of the cell",
    )
    assert time.time() - worked < 600
    told = there.evaluate(ATTACKS, portal)
    assert told["read"] == "TypeError" and told["socket"] == "refused"
    assert "evil" not in told["cookies"] and "sessionid" not in told["cookies"]
    kept = {one["name"]: one for one in page.context.cookies(portal)}
    assert kept["sessionid"]["value"] == session
    assert kept.keys() <= {"sessionid", "csrftoken"}
    page.reload()
    expect(page.locator("html")).to_have_attribute("lang", "en")
    elsewhere(lab.end, Workspace.objects.get())
    expect(panel).to_contain_text("stopped")
    there.reload()
    expect(there.locator("body")).to_contain_text("The workspace has ended.")


def test_marimo_runs_a_cell_and_tensorboard_runs_beside_it_without_gpus(
    page: Page, lab, live_asgi, alice, tmp_path
):
    notes = tmp_path / "notes"
    (notes / "run").mkdir(parents=True)
    notebook = "import marimo\napp = marimo.App()\n@app.cell\ndef _():\n    return\n"
    (notes / "cells.py").write_text(notebook)
    portal = live_asgi.replace("127.0.0.1", "localhost")
    session = elsewhere(signed_in, alice).cookies["sessionid"].value
    cookie = {"name": site.SESSION_COOKIE_NAME, "value": session, "url": portal}
    page.context.add_cookies([cookie])
    page.goto(f"{portal}/reservations/{lab.held.pk}/")
    panel = page.locator("#workspaces")
    panel.get_by_label("Environment").fill(ENVIRONMENT)
    panel.get_by_label("Folder").fill(str(notes))
    panel.get_by_role("button", name="Start marimo").click()
    expect(panel).to_contain_text("queued")
    marimo = elsewhere(Workspace.objects.get)
    elsewhere(lab.start, marimo)
    with page.context.expect_page() as opening:
        panel.get_by_role("button", name="Open marimo").click(timeout=WAIT_MS)
    there = opening.value
    with page.context.expect_page() as opening:
        there.get_by_role("link", name="cells").first.click(timeout=START_MS)
    notebook_page = opening.value
    cell = notebook_page.locator(".cm-content").first
    cell.fill("import os; os.environ['GPUPORTAL_GPU_COUNT'] + '!'", timeout=START_MS)
    cell.press("Control+Enter")
    expect(notebook_page.locator(".output").first).to_contain_text(
        "2!", timeout=START_MS
    )
    panel.get_by_role("button", name="Start TensorBoard").click()
    board = elsewhere(lambda: Workspace.objects.get(app="tensorboard"))
    elsewhere(lab.start, board)
    assert board.job.gpu_ids == [] and marimo.job.gpu_count is None
    with page.context.expect_page() as opening:
        panel.get_by_role("button", name="Open TensorBoard").click(timeout=WAIT_MS)
    expect(opening.value.locator("tb-webapp")).to_contain_text(
        "No dashboards are active", timeout=START_MS
    )
    for one in (marimo, board):
        elsewhere(lab.end, one)

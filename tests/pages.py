"""Shared functions of tests of pages in a browser."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from django.db import connections
from playwright.sync_api import Page, Route, WebSocket, expect

AXE = Path(__file__).resolve().parents[1] / "node_modules/axe-core/axe.min.js"
WAIT_MS = 20_000
"""How long an expectation waits for its condition, on a busy machine."""
AXE_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def wait_as_on_a_busy_machine() -> None:
    """Give every expectation its time. It goes on as soon as its condition holds."""
    expect.set_options(timeout=WAIT_MS)


def elsewhere(call: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call in a separate thread, because Playwright keeps a loop running in this
    one.
    """

    def run() -> Any:
        try:
            return call(*args, **named)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def eventually(page: Page, holds: Callable[[], bool]) -> None:
    """Wait till something holds that no expectation of Playwright can read."""
    for _ in range(WAIT_MS // 50):
        if holds():
            return
        page.wait_for_timeout(50)
    assert holds()


def listens(page: Page, path: str) -> Callable[[], None]:
    """Return what waits till a page opened from now on hears a socket's first words."""
    heard: list[object] = []

    def opened(socket: WebSocket) -> None:
        if path in socket.url:
            socket.on("framereceived", lambda frame: heard.append(frame))

    # Before the page is opened: the words may come before goto() returns.
    page.on("websocket", opened)
    return lambda: eventually(page, lambda: bool(heard))


def hold(page: Page, pattern: str) -> Callable[[], None]:
    """Hold requests; return a function that lets them and all later ones go on."""
    held: list[Route] | None = []

    def asked(route: Route) -> None:
        if held is None:
            route.continue_()
        else:
            held.append(route)

    def let_go() -> None:
        nonlocal held
        waiting, held = held or [], None
        for route in waiting:
            route.continue_()

    page.route(pattern, asked)
    return let_go


def hold_back(page: Page, script: str) -> Callable[[], None]:
    """Hold a script of the coming page back; return a function that lets it come."""
    held: list[Route] = []
    page.route(f"**/{script}", lambda route: held.append(route))

    def let_come() -> None:
        # The browser asks for it when it has read that far.
        eventually(page, lambda: bool(held))
        (route,) = held
        route.continue_()

    return let_come


def faded_in(page: Page) -> None:
    """Wait for elements that fade or move, because their colours are not final
    before.
    """
    page.evaluate(
        """async () => {
          const ends = (one) => one.effect.getComputedTiming().endTime < Infinity;
          const moving = document.getAnimations().filter(ends);
          // One that is paused, or behind a page that draws nothing, never finishes.
          const late = new Promise((done) => setTimeout(done, 5000));
          const ended = Promise.allSettled(moving.map((one) => one.finished));
          await Promise.race([ended, late]);
        }"""
    )


def violations(page: Page) -> list[str]:
    """Return what axe-core finds on the page as it is."""
    faded_in(page)
    # evaluate() is not bound by the page's policy for scripts.
    page.evaluate(AXE.read_text() + "\n;0")
    found: list[str] = page.evaluate(
        """async (values) => {
          const runOnly = { type: "tag", values };
          const result = await axe.run(document, { runOnly });
          const words = (node) => `${node.html} ${node.failureSummary}`;
          return result.violations.map((v) =>
            `${v.id}: ${v.help}: ${v.nodes.slice(0, 4).map(words).join(" | ")}`);
        }""",
        AXE_RULES,
    )
    return found


def fits(page: Page) -> None:
    """Check that nothing is wider than the window."""
    excess = page.evaluate(
        "() => document.documentElement.scrollWidth - window.innerWidth"
    )
    assert excess <= 0

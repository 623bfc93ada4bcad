"""Shared functions of tests of pages in a browser."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from django.db import connections
from playwright.sync_api import Page, Route, expect

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


def hold_back(page: Page, script: str) -> Callable[[], None]:
    """Hold a script of the coming page back; return a function that lets it come."""
    held: list[Route] = []
    page.route(f"**/{script}", lambda route: held.append(route))

    def let_come() -> None:
        # The browser asks for it when it has read that far.
        for _ in range(600):
            if held:
                break
            page.wait_for_timeout(50)
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

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
AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
COLOURS = ["color-contrast", "link-in-text-block"]
"""The rules of axe-core about colours. A theme changes nothing else."""
DRAW_EVERYTHING = """() => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(`
    * { content-visibility: visible !important; }
    *, ::before, ::after { transition: none !important; }`);
  document.adoptedStyleSheets.push(sheet);
}"""
"""What is out of sight, and so not drawn, keeps the colours of the theme before. So
does a link for some frames: when its row has changed its colour, the link begins to."""
DESKTOP = (1280, 900)
PHONE = (360, 760)


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


def violations(page: Page, *, colours_only: bool = False) -> list[str]:
    """Return what axe-core finds on the page as it is.

    Args:
        page: waits for nothing but elements that fade or move.
        colours_only: apply only the rules about colours, which takes a third of the
            time.
    """
    # evaluate() is not bound by the page's policy for scripts.
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text() + "\n;0")
        page.evaluate(DRAW_EVERYTHING)
    faded_in(page)
    found: list[str] = page.evaluate(
        """async (runOnly) => {
          // What is found is told by its HTML, so that axe-core need not look for the
          // shortest selector of each node. No page has sounds to load first.
          const result = await axe.run({
            ...{ runOnly, resultTypes: ["violations"] },
            ...{ selectors: false, preload: false },
          });
          const words = (node) => `${node.html} ${node.failureSummary}`;
          return result.violations.map((v) =>
            `${v.id}: ${v.help}: ${v.nodes.slice(0, 4).map(words).join(" | ")}`);
        }""",
        COLOURS if colours_only else AXE_TAGS,
    )
    return found


def check_themes(page: Page, first: str = "light") -> None:
    """Check the page with axe-core in both themes, in the other with colours only.

    The page is one of a person who has chosen no theme. It is left in the first one.
    """
    other = "dark" if first == "light" else "light"
    for theme in (other, first):
        # Without motion the new colours are there at once.
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        found = violations(page, colours_only=theme == other)
        assert found == [], (theme, found)
    page.emulate_media(reduced_motion="null")


def no_native_days(page: Page) -> None:
    """Check that no browser shows its own field of a day, a month or a time."""
    kinds = ("date", "month", "time", "week", "datetime-local")
    native = ", ".join(f"input[type={kind}]" for kind in kinds)
    assert page.locator(native).count() == 0, page.url


def check_looks(
    page: Page,
    *,
    desktop: tuple[int, int] = DESKTOP,
    phone: tuple[int, int] = PHONE,
) -> None:
    """Check the page with axe-core on a dark phone, and on a desktop in both themes,
    that it fits on each, and that its fields of days are the portal's. It is left on
    the desktop, at its top, in the light theme.

    Colours that only a phone has are those of menus and of the board's filters. Their
    tests check both themes.
    """
    no_native_days(page)
    check_phone(page, phone)
    _resize(page, desktop)
    check_themes(page)
    fits(page)


def check_phone(page: Page, size: tuple[int, int] = PHONE) -> None:
    """Check the page with axe-core on a dark phone, and that it fits there."""
    _resize(page, size)
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    found = violations(page)
    assert found == [], ("phone", found)
    fits(page)


def _resize(page: Page, size: tuple[int, int]) -> None:
    """Give the window a size, and go to the top of the page.

    Farther down, the bar covers half of a button.
    """
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.evaluate("() => scrollTo(0, 0)")


def fits(page: Page) -> None:
    """Check that nothing is wider than the window."""
    excess = page.evaluate(
        "() => document.documentElement.scrollWidth - window.innerWidth"
    )
    assert excess <= 0, page.url

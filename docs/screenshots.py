"""Takes the pictures of the README from a running portal's real pages.

    python docs/screenshots.py http://127.0.0.1:8010 USER [--out docs/img]

The password is read from the environment (PORTAL_PASSWORD) or asked for, so
that it stands in no shell history. Each page is taken in light, dark and at 360 px.
A page that answers with an error, or whose console complains, ends the run.
"""

import argparse
import getpass
import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

WIDE = {"width": 1440, "height": 900}
PHONE = {"width": 360, "height": 780}
WALL = {"width": 1920, "height": 1080}
SETTLE_MS = 2500
"""Fonts, the first frames and a chart's first drawing."""

# Name of the picture, address, what must be there before the shutter opens.
PAGES: tuple[tuple[str, str, str], ...] = (
    ("board", "/", ".gpu-util"),
    ("board-table", "/?view=table", ".board-table tbody tr"),
    ("calendar", "/calendar/", "#content"),
    ("plan", "/plan/", "#content"),
    ("jobs", "/jobs/", "#content"),
    ("standing", "/standing/", "#content"),
    ("settings", "/me/", "#content"),
    ("search", "/search?q=node", "#content"),
)
LOOKS = (("light", "light", WIDE), ("dark", "dark", WIDE), ("360", "light", PHONE))


class Camera:
    """One browser that signs in and takes pictures."""

    def __init__(self, browser: Browser, base: str, out: Path) -> None:
        self.browser, self.base, self.out = browser, base.rstrip("/"), out
        self.complaints: list[str] = []

    def open(self, scheme: str, size: dict[str, int]) -> Page:
        """Return a page of that look."""
        context = self.browser.new_context(
            viewport=size,  # type: ignore[arg-type]
            color_scheme=scheme,  # type: ignore[arg-type]
            device_scale_factor=2 if size is PHONE else 1,
        )
        page = context.new_page()
        page.on("console", self._listen)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        return page

    def _listen(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    def sign_in(self, page: Page, user: str, password: str) -> None:
        """Enter by the login page.

        Raises:
            SystemExit: the portal does not let this user in.
        """
        page.goto(f"{self.base}/login/")
        page.fill("[name=username]", user)
        page.fill("[name=password]", password)
        page.press("[name=password]", "Enter")
        page.wait_for_load_state()
        if "/login" in page.url:
            raise SystemExit(f"the portal did not let {user} in")

    def take(self, page: Page, name: str, address: str, wait_for: str) -> None:
        """Save one picture of what the window shows.

        Raises:
            SystemExit: the page answered with an error.
        """
        answer = page.goto(self.base + address)
        if answer is None or not answer.ok:
            status = answer.status if answer else "nothing"
            raise SystemExit(f"{address} answered {status}")
        page.locator(wait_for).first.wait_for()
        page.wait_for_timeout(SETTLE_MS)
        path = self.out / f"{name}.png"
        page.screenshot(path=path)
        sys.stdout.write(f"{path}\n")


def shoot(base: str, user: str, password: str, out: Path, only: set[str]) -> None:
    """Take every picture, or those named.

    Raises:
        SystemExit: no Chromium, an error page, or a complaint in a console.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("no Chromium here: apt-get install chromium")
    out.mkdir(parents=True, exist_ok=True)
    pages = [page for page in PAGES if not only or page[0] in only]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        camera = Camera(browser, base, out)
        for look, scheme, size in LOOKS:
            page = camera.open(scheme, size)
            page.goto(f"{camera.base}/login/")
            if not only or "login" in only:
                page.screenshot(path=out / f"login-{look}.png")
            camera.sign_in(page, user, password)
            for name, address, wait_for in pages:
                camera.take(page, f"{name}-{look}", address, wait_for)
            page.context.close()
        if not only or "wall" in only:
            page = camera.open("dark", WALL)
            camera.sign_in(page, user, password)
            camera.take(page, "wall-dark", "/?view=wall", ".tile-util")
        browser.close()
    if camera.complaints:
        raise SystemExit("consoles complained:\n" + "\n".join(camera.complaints))


def main() -> None:
    """Read the arguments and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", help="address of a running portal")
    parser.add_argument("user", help="whose login")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "img")
    parser.add_argument("--only", nargs="*", default=[], help="names of pictures")
    asked = parser.parse_args()
    password = os.environ.get("PORTAL_PASSWORD") or getpass.getpass("password: ")
    shoot(asked.base, asked.user, password, asked.out, set(asked.only))


if __name__ == "__main__":
    main()

"""A student's week and an admin's week, pressed button by button in the browser.

One portal with the demo lab serves every story: web, worker, beat, ingest, two node
workers, the embedded Valkey, and jobs under shims. No story calls an address without
the page. A story fails on an error or a warning in the console, a script error,
an answer of 400 or more that its step does not name, and any finding of axe-core.

On a phone a story has the steps whose pages have another layout there, or whose buttons
no other test presses there.
"""

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, Response, expect

from tests.gpuportal.running import Portal, manage
from tests.pages import WAIT_MS, check_themes, fits, no_native_days, violations

STATE_MS = 60_000
"""How long a step waits for the state that it needs, on a busy machine."""
LOOKS = {
    "desktop": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
}
desktop = pytest.mark.parametrize("story", ["desktop"], indirect=True)
phone = pytest.mark.parametrize("story", ["phone"], indirect=True)

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class DemoPortal:
    """A running portal with the demo lab."""

    address: str
    logins: dict[str, str]
    """Each user name's password."""
    var: Path

    def ledger(self, reservation: int) -> dict[str, int]:
        """Sum the ledger rows of a reservation by kind."""
        with closing(sqlite3.connect(self.var / "db.sqlite3", timeout=20)) as rows:
            return dict(
                rows.execute(
                    "SELECT kind, SUM(gpu_seconds) FROM reservations_ledgerentry "
                    "WHERE reservation_id = ? GROUP BY kind",
                    [reservation],
                )
            )


@pytest.fixture(scope="module")
def demo_portal(
    tmp_path_factory: pytest.TempPathFactory, make_database: Callable[[Path], None]
) -> Iterator[DemoPortal]:
    """The portal of all stories."""
    var = tmp_path_factory.mktemp("weeks") / "var"
    make_database(var / "db.sqlite3")
    done = manage(var, "demo_lab")
    assert done.returncode == 0, done.stderr
    add_card(var)
    text = (var / "secret" / "logins.txt").read_text()
    with Portal(var) as portal:
        address = portal.ready()
        deadline = time.monotonic() + STATE_MS / 1000
        while not has_open_squatter(var):
            assert time.monotonic() < deadline, "no alert of a squatter"
            time.sleep(0.2)
        logins = dict(line.split() for line in text.splitlines())
        yield DemoPortal(address, logins, var)


def add_card(var: Path) -> None:
    """Put one more card into node-b, which has only one that is free for certain.

    Nobody has booked the card with the squatter either. A plan leaves it out as soon as
    the portal has found the process there.
    """
    path = var / "sim" / "node-b.json"
    script = json.loads(path.read_text())
    last = script["gpus"][-1]
    number = last["index"] + 1
    more = {
        "uuid": last["uuid"][:-1] + str(number),
        "index": number,
        "serial": f"SIM002{number:04d}",
        "pci_bus_id": f"00000000:{0x17 + 16 * number:02X}:00.0",
    }
    script["gpus"].append(last | more)
    path.write_text(json.dumps(script))


def has_open_squatter(var: Path) -> bool:
    """Return whether the portal has found the process on a GPU that nobody booked.

    Within its first seconds it has not, and a story that books then gets this GPU.
    """
    with closing(sqlite3.connect(var / "db.sqlite3", timeout=20)) as rows:
        found = rows.execute(
            "SELECT 1 FROM telemetry_alert "
            "WHERE rule = 'squatter' AND closed_at IS NULL"
        )
        return found.fetchone() is not None


class Story:
    """A person at a browser. Errors are collected until the next look."""

    def __init__(self, page: Page, portal: DemoPortal) -> None:
        self.page = page
        self.portal = portal
        self.looks: set[str] = set()
        self.wrong: list[str] = []
        self._expected: dict[int, int] = {}
        self.hear(page)

    def hear(self, page: Page) -> None:
        """Listen to the console, the scripts and the answers of a page."""
        page.on("pageerror", lambda error: self.wrong.append(f"uncaught: {error}"))
        page.on("response", self._answered)
        page.on(
            "console",
            lambda line: (
                self.wrong.append(f"{line.type}: {line.text} at {page.url}")
                if line.type in ("error", "warning")
                # The answer itself is judged, with its address.
                and not line.text.startswith("Failed to load resource: the server")
                else None
            ),
        )

    def _answered(self, answer: Response) -> None:
        if answer.status < 400:
            return
        if answer.status in self._expected:
            self._expected[answer.status] += 1
            return
        method, path = answer.request.method, urlsplit(answer.url).path
        self.wrong.append(f"{answer.status} to {method} {path}")

    @contextmanager
    def refusing(self, status: int) -> Iterator[None]:
        """Expect answers of one status in a step, and fail without one."""
        self._expected[status] = 0
        yield
        assert self._expected.pop(status), f"nothing answered {status}"

    def look(self, name: str, page: Page | None = None) -> None:
        """Check the page in the state that the story has reached.

        axe-core looks once at a state of one name: on a desktop in both themes, on a
        phone in the theme of the story.
        """
        page = page or self.page
        # A page that came with the last press has to be whole.
        page.wait_for_load_state()
        known = len(self.wrong)
        # A verdict that is being computed is faint until the answer is there.
        expect(page.locator('.verdict[aria-busy="true"]')).to_have_count(0)
        if name not in self.looks:
            self.looks.add(name)
            if page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches"):
                assert violations(page) == [], name
            else:
                check_themes(page)
        # axe-core changes styles of nodes while it looks, and a reloaded list copies
        # them.
        self.wrong[known:] = [
            line for line in self.wrong[known:] if "Applying inline style" not in line
        ]
        fits(page)
        no_native_days(page)
        assert self.wrong == [], name

    # --- actions
    # --------------------------------------------------------------------------

    def go(self, name: str, within: str = "Main") -> None:
        """Follow a link of the top bar, or of the tabs of another bar."""
        bar = self.page.get_by_role("navigation", name=within, exact=True)
        menu = {"Main": "main-nav", "Manage": "manage-tabs"}.get(within)
        opener = self.page.locator(f'[popovertarget="{menu}"]')
        link = bar.get_by_role("link", name=name, exact=True)
        # On a phone the links wait behind a button, which its script must have heard.
        self.page.wait_for_load_state()
        if menu and opener.is_visible() and not link.is_visible():
            opener.click()
        link.click()

    def press(self, name: str | re.Pattern[str], under: Locator | None = None) -> None:
        """Press the one button with a name."""
        # The banners' own "Show all messages in full" is never the one to press.
        other = self.page.locator("button:not(#banners-more)")
        button = (under or self.page).get_by_role("button", name=name).and_(other)
        button.wait_for()
        # The scripts of the page have run by then, so they handle the press.
        self.page.wait_for_load_state("domcontentloaded")
        button.click()

    def follow(self, name: str | re.Pattern[str], under: Locator | None = None) -> None:
        """Follow the one link with a name."""
        (under or self.page).get_by_role("link", name=name).click()

    def heading(self, name: str | re.Pattern[str]) -> None:
        """Wait for the page with a heading."""
        expect(self.page.get_by_role("heading", name=name, level=1)).to_be_visible()
        # Its scripts have run by then.
        self.page.wait_for_load_state()

    def toast(self, text: str | re.Pattern[str]) -> Locator:
        """Wait for the newest notice at the foot of the page that holds a text."""
        found = self.page.locator(".toast", has_text=text).last
        expect(found).to_be_visible()
        return found

    def account_menu(self, name: str) -> None:
        """Follow a line of the menu behind the avatar."""
        self.press(re.compile("account menu$"))
        menu = self.page.locator("#me-menu")
        menu.get_by_text(name, exact=True).click()

    def sign_in(self, name: str) -> None:
        """Sign in, whatever the next page is."""
        self.page.goto(f"{self.portal.address}/login/")
        self.page.get_by_label("User name").fill(name)
        password = self.page.get_by_label("Password", exact=True)
        password.fill(self.portal.logins[name])
        self.press("Sign in")
        expect(self.page.locator("#me-menu")).to_be_attached()

    def sign_out(self) -> None:
        """Sign out and arrive at the form to sign in."""
        self.account_menu("Sign out")
        expect(self.page.get_by_label("User name")).to_be_visible()
        self.look("signed out")


@pytest.fixture
def story(
    request: pytest.FixtureRequest, browser: Browser, demo_portal: DemoPortal
) -> Iterator[Story]:
    """A separate browser, with a large or a phone's screen."""
    expect.set_options(timeout=STATE_MS)
    context = browser.new_context(locale="en-GB", **LOOKS[request.param])
    context.set_default_timeout(STATE_MS)
    yield Story(context.new_page(), demo_portal)
    context.close()
    expect.set_options(timeout=WAIT_MS)


# --- the student --------------------------------------------------------------------


def book_now(story: Story) -> int:
    """Book two GPUs from now on for two hours, and add an hour; return the booking."""
    page = story.page
    story.go("My reservations")
    story.heading("My reservations")
    story.look("my reservations")
    page.get_by_role("link", name="New booking").first.click()
    expect(page.locator("#toolbar")).to_have_attribute("data-live", "open")
    page.locator("#new-booking").click()
    drawer = page.locator("#booking")
    drawer.get_by_role("button", name="Now", exact=True).click()
    drawer.get_by_role("button", name="2 h", exact=True).click()
    story.press("One more GPU like this", drawer)
    drawer.get_by_label("What for").fill("first baseline")
    expect(page.locator("#verdict .verdict-kind")).to_be_visible()
    story.look("new booking")
    with page.expect_response(re.compile("/api/v1/reservations$")) as answer:
        drawer.get_by_role("button", name="Book", exact=True).click()
    made = int(answer.value.json()["id"])
    story.toast("Booked:")
    expect(page.locator("#drawer")).to_be_hidden()
    story.go("My reservations")
    mine = running(page, made)
    story.press("One hour longer", mine)
    story.toast("One hour longer.")
    story.look("an hour longer")
    return made


def running(page: Page, made: int) -> Locator:
    """Return the card of a booking that runs now."""
    link = page.locator(f"a[href='/reservations/{made}/']")
    return page.locator(".mine-booking", has=link)


def new_job(story: Story, now: int) -> None:
    """Open the form of a job in the running booking."""
    story.follow("Start a job", running(story.page, now))
    story.heading("New job")
    fill_job(story)


def fill_job(story: Story) -> None:
    """Fill the form of a job with the real recipe."""
    page = story.page
    page.get_by_label("Name", exact=True).fill("week one")
    page.get_by_text("Settings of Tiny transformer").click()
    page.locator("[name='tiny-transformer.steps']").fill("6")
    story.look("new job")


def find_and_change(story: Story) -> int:
    """Find a slot in two days, book it, change it, undo that; return the booking."""
    page = story.page
    story.go("Calendar")
    expect(page.locator("#toolbar")).to_have_attribute("data-live", "open")
    page.locator("#open-find").click()
    find = page.locator("#find")
    day = (datetime.now(UTC) + timedelta(days=2)).date()
    find.get_by_label("Hours", exact=True).fill("3")
    find.get_by_label("Not before", exact=True).fill(day.isoformat())
    find.get_by_label("Not before, time (24 h)").fill("10:00")
    find.get_by_role("button", name="Find", exact=True).click()
    first = page.locator(".slot-card").first
    expect(first).to_be_visible()
    story.look("slots")
    first.click()
    expect(page.locator("#verdict .verdict-kind")).to_be_visible()
    page.locator("#purpose").fill("second baseline")
    with page.expect_response(re.compile("/api/v1/reservations$")) as answer:
        page.locator("#book").click()
    made = answer.value.json()["id"]
    story.toast("Booked:")
    open_own(story, made)
    story.press("Change")
    expect(page.locator("#purpose")).to_have_value("second baseline")
    before = page.locator("#length").inner_text()
    # Shorter: what is behind it in the calendar may be taken.
    page.locator("#lengths").get_by_role("button", name="2 h", exact=True).click()
    page.locator("#purpose").fill("longer baseline")
    expect(page.locator("#verdict .verdict-kind")).to_be_visible()
    expect(page.locator("#verdict")).not_to_have_attribute("aria-busy", "true")
    story.look("a change in the drawer")
    story.press("Save changes")
    changed = story.toast("Changed:")
    # It stays while the pointer is on it.
    changed.hover()
    expect(page.locator("#drawer")).to_be_hidden()
    story.press("Undo", changed)
    expect(changed).to_be_hidden()
    open_own(story, made)
    details = page.locator("#details")
    expect(details).to_contain_text("second baseline")
    expect(details).to_contain_text(before)
    story.look("details in the drawer")
    story.press("Close", details)
    return int(made)


def open_own(story: Story, made: int) -> None:
    """Press a booking in the calendar: its bar, or its line on a phone."""
    page = story.page
    marks = f"[data-reservation='{made}'], [data-key='r{made}']"
    page.locator(marks).locator("visible=true").first.click()
    expect(page.locator("#details-title")).to_have_text("Your reservation")


def be_refused(story: Story) -> None:
    """Request every GPU at once. Take one of the alternatives of the refusal."""
    page = story.page
    page.locator("#new-booking").click()
    drawer = page.locator("#booking")
    expect(drawer).to_be_visible()
    gpus = drawer.locator("#gpu-list input:enabled")
    expect(gpus.first).to_be_attached()
    for gpu in gpus.evaluate_all("(all) => all.map((one) => one.value)"):
        drawer.locator(f"#gpu-list input[value='{gpu}']").check()
    drawer.get_by_role("button", name="1 d", exact=True).click()
    expect(drawer.locator(".refusal", has_text="GPUs at once")).to_be_visible()
    expect(page.locator("#book")).to_have_text("Cannot be booked")
    story.look("a refusal")
    for _ in range(drawer.locator("#gpu-list input:checked").count() - 1):
        story.press("One GPU fewer", drawer)
    # One GPU is within the limit. It may be taken, which is another refusal.
    at_once = drawer.locator(".refusal", has_text="GPUs at once")
    expect(at_once).to_have_count(0)
    expect(drawer.locator(".refusal, .verdict-kind").first).to_be_visible()
    expect(page.locator("#verdict")).not_to_have_attribute("aria-busy", "true")
    take = drawer.locator(".refusal .ways").get_by_role(
        "button", name=re.compile("^Take")
    )
    if take.count():
        take.first.click()
        expect(drawer.locator(".verdict-kind")).to_be_visible()
    story.look("a way out")
    story.press("Close", drawer)
    expect(drawer).to_be_hidden()


def wait(story: Story) -> None:
    """Join the waitlist and leave it."""
    page = story.page
    story.go("Calendar")
    page.get_by_role("link", name="Waitlist").click()
    story.heading("Waitlist")
    # Every A100 from now on. At so short notice nothing is booked without a yes, so the
    # request waits whatever the calendar holds.
    page.get_by_label("GPUs", exact=True).fill("4")
    page.get_by_label("Hours", exact=True).fill("20")
    over = datetime.now(UTC) + timedelta(hours=20, minutes=30)
    page.get_by_label("Done by", exact=True).fill(f"{over:%Y-%m-%d}")
    page.get_by_label("Done by, time (24 h)").fill(f"{over:%H:%M}")
    big = page.locator("#wait-class option", has_text="A100").inner_text()
    page.get_by_label("Class", exact=True).select_option(label=big)
    page.get_by_label("Purpose").fill("five more seeds")
    story.press("Join the waitlist")
    own = page.locator(".wait", has_text="five more seeds").first
    expect(own).to_be_visible()
    story.look("waitlist")
    story.press("Withdraw", own)
    story.press("Withdraw", page.get_by_role("dialog"))
    expect(own.get_by_role("button", name="Withdraw")).to_have_count(0)
    story.look("withdrawn")


def plan_and_book(story: Story) -> int:
    """Plan a model, book the two GPUs of the fastest plan; return the booking."""
    page = story.page
    story.go("Plan")
    story.heading("Plan a model")
    page.get_by_label("Model", exact=True).select_option("tiny-gpt")
    expect(page.locator("#now-likely")).to_be_visible()
    expect(page.locator("#verdict")).not_to_be_empty()
    expect(page.locator(".plan-card").first).to_be_visible()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    story.look("plan")
    # So small a model is only a little faster on two GPUs: ask for the fastest plan.
    page.get_by_label("Optimize for", exact=True).select_option("fastest")
    pair = page.locator(".plan-card", has_text=re.compile(r"\b2 GPUs\b")).first
    story.press(re.compile("^Book these"), pair)
    expect(page).to_have_url(re.compile("/calendar/.*plan="))
    # The verdict is above all buttons.
    expect(page.locator("#verdict")).to_contain_text(re.compile("firm", re.I))
    page.locator("#book").click()
    expect(page).to_have_url(re.compile(r"/jobs/new/\?.*reservation=\d+"))
    return int(parse_qs(urlsplit(page.url).query)["reservation"][0])


def train(story: Story) -> None:
    """Start the recipe. See its log, its end and its charts."""
    page = story.page
    story.heading("New job")
    fill_job(story)
    story.press("Launch")
    story.heading("week one")
    log = page.locator("#log")
    expect(log).to_contain_text(re.compile(r"step:? 1\b"), timeout=120_000)
    expect(log).to_contain_text("steps 6", timeout=120_000)
    expect(page.locator("#job-state")).to_have_text("done", timeout=120_000)
    page.get_by_role("tab", name="Charts").click()
    expect(page.locator(".chart", has_text="loss").locator("canvas")).to_be_visible()
    story.look("a job's charts")


def be_charged(story: Story, made: int) -> None:
    """Give the rest back on the reservation's page. Pay for the time used."""
    page, ledger = story.page, story.portal.ledger
    held = ledger(made)["hold"]
    assert held > 0
    page.locator(f"a[href='/reservations/{made}/']").first.click()
    page.get_by_role("button", name="Give back now").first.click()
    story.press("Give back now", page.get_by_role("dialog"))
    deadline = time.monotonic() + STATE_MS / 1000
    while "charge" not in ledger(made):
        assert time.monotonic() < deadline, ledger(made)
        time.sleep(0.2)
    sums = ledger(made)
    assert sums["hold"] == held
    assert sums["hold"] + sums["release"] == 0
    assert 0 < sums["charge"] <= held


def share(story: Story, friend: str, made: int) -> None:
    """Share the later booking with a member of the same group."""
    page = story.page
    story.go("My reservations")
    page.locator(f"#mine a[href='/reservations/{made}/']").first.click()
    page.locator("summary", has_text="Share").click()
    page.get_by_label(re.compile("^Share with")).fill(friend)
    page.get_by_role("button", name="Share", exact=True).click()
    expect(page.get_by_text("with 1", exact=True)).to_be_visible()
    story.look("shared")


def cancel(story: Story, made: int) -> None:
    """Cancel the later booking, undo that, cancel it again."""
    page = story.page
    story.go("My reservations")
    link = page.locator(f"a[href='/reservations/{made}/']")
    one = page.locator(".mine-list li, .mine-booking", has=link)
    story.press(re.compile("^Cancel"), one)
    said = story.toast("Cancelled.")
    said.hover()
    expect(one).to_have_count(0)
    story.press("Undo", said)
    expect(said).to_be_hidden()
    story.press(re.compile("^Cancel"), one)
    story.toast("Cancelled.")
    expect(one).to_have_count(0)
    story.look("cancelled")


def give_back(story: Story, made: int) -> None:
    """Give the rest of the running booking back."""
    page = story.page
    story.press("Give back now", running(page, made))
    dialog = page.get_by_role("dialog")
    story.look("give back?")
    story.press("Give back now", dialog)
    story.toast("Given back.")
    expect(running(page, made)).to_have_count(0)


def read(story: Story, charged: int) -> None:
    """Read the standing, the notices and the help. Switch the theme."""
    page = story.page
    story.go("Standing")
    story.heading("Standing")
    expect(page.get_by_text(re.compile(r"You are \d+\w+ of 20"))).to_be_visible()
    ledger = page.locator("table", has_text="charge").first
    expect(ledger).to_contain_text(f"{charged}")
    story.look("standing")
    story.account_menu("Notifications")
    story.heading("Notices")
    story.look("notices")
    unread = page.get_by_role("button", name="Mark all read")
    if unread.count():
        story.press("Mark all read")
        # The page with the answer has no such button.
        expect(unread).to_have_count(0)
        story.heading("Notices")
    story.account_menu("Help")
    story.heading("Help")
    story.look("help")
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    story.press("Theme")
    page.get_by_role("menuitemradio", name="Light" if dark else "Dark").click()
    expect(page.locator("html")).to_have_attribute(
        "data-theme", "light" if dark else "dark"
    )
    story.look("the other theme")


@desktop
def test_a_student_s_week(story: Story) -> None:
    story.sign_in("alice")
    see_the_board(story)
    see_people_and_intruders(story)
    planned = plan_and_book(story)
    train(story)
    be_charged(story, planned)
    now = book_now(story)
    made = find_and_change(story)
    be_refused(story)
    wait(story)
    share(story, "bob", made)
    cancel(story, made)
    give_back(story, now)
    read(story, planned)
    story.sign_out()


@phone
def test_a_student_s_week_on_a_phone(story: Story) -> None:
    story.sign_in("bob")
    see_the_board(story)
    now = book_now(story)
    new_job(story, now)
    made = find_and_change(story)
    share(story, "alice", made)
    cancel(story, made)
    give_back(story, now)
    story.sign_out()


def see_the_board(story: Story) -> None:
    story.go("Board")
    expect(story.page.get_by_text(re.compile(r"^live, \d"))).to_be_visible()
    story.look("board")


def see_people_and_intruders(story: Story) -> None:
    page = story.page
    intruder = page.get_by_text("someone else’s process", exact=True)
    expect(intruder.first).to_be_visible()
    expect(page.get_by_text("These GPUs are simulated", exact=False)).to_be_visible()


# --- the admin ----------------------------------------------------------------------


@desktop
def test_an_admin_s_week(story: Story) -> None:
    story.sign_in("omar")
    story.go("Manage")
    story.heading("What needs you today")
    story.look("manage")
    acknowledge(story)
    change_a_quota(story)
    look_at_a_person(story)
    add_and_remove_a_member(story)
    change_a_rule(story)
    drain(story)
    close_and_open(story)
    audit(story)
    make_a_kiosk(story)
    story.sign_out()


@phone
def test_an_admin_s_week_on_a_phone(story: Story) -> None:
    story.sign_in("omar")
    acknowledge(story)
    change_a_quota(story)
    change_a_rule(story)


def acknowledge(story: Story) -> None:
    """Open an alert from the bell, acknowledge it, undo that."""
    page = story.page
    page.locator("#bell").click()
    page.get_by_role("link", name="All alerts").click()
    story.heading("Alerts")
    # This GPU of the demo lab is lost for good. Other alerts come and go meanwhile.
    lost = page.locator(".alert", has_text="GPU lost").filter(has_text="node-b:4")
    one = page.locator(f"#{lost.get_attribute('id')}")
    one.locator("summary").click()
    story.look("alerts")
    story.press("Acknowledge", one)
    # The answer leads back to it.
    expect(
        one.locator("details[open]").get_by_text("acknowledged").first
    ).to_be_visible()
    story.look("acknowledged")
    story.press("Undo acknowledge", one)
    expect(one.get_by_role("button", name="Acknowledge", exact=True)).to_be_visible()
    expect(one.get_by_text("acknowledged")).to_have_count(0)


def change_a_quota(story: Story) -> None:
    """Give a group another quota: preview, save, undo."""
    page = story.page
    open_group(story)
    field = page.get_by_label(re.compile("^Quota of .* in credits$")).first
    field.fill("777")
    page.get_by_role("button", name="Preview").click()
    story.heading("What these changes do")
    story.look("preview of a quota")
    save_draft(story, "more for a deadline")
    undo_change(story)


def open_group(story: Story) -> None:
    """Open the group "vision" in the tree."""
    page = story.page
    story.go("Manage")
    story.go("Groups", "Manage")
    page.get_by_label("Group, user name or name").fill("vision")
    story.press(re.compile("^Show$"))
    page.get_by_role("table").get_by_role(
        "link", name=re.compile("Vision")
    ).first.click()
    expect(page.get_by_role("heading", name=re.compile("^Members of"))).to_be_visible()
    story.look("a group")


def save_draft(story: Story, why: str) -> None:
    page = story.page
    page.get_by_label(re.compile("^Reason")).fill(why)
    story.press("Apply all")
    expect(page.get_by_role("heading", name="What these changes do")).to_have_count(0)


def undo_change(story: Story) -> None:
    page = story.page
    story.heading("Changes to groups")
    page.get_by_role("button", name=re.compile("^Undo change")).first.click()
    expect(page.get_by_text(re.compile("^undone by #")).first).to_be_visible()
    story.look("changes to groups")


def look_at_a_person(story: Story) -> None:
    """Find a person and open their page."""
    page = story.page
    story.go("Manage")
    story.go("People", "Manage")
    story.heading("People")
    page.get_by_label("Name, user name or mail").fill("alice")
    story.press("Show")
    story.look("people")
    page.get_by_role("link", name="Edit alice").click()
    expect(page.get_by_role("heading", name="Groups and quotas")).to_be_visible()
    story.look("a person")


def add_and_remove_a_member(story: Story) -> None:
    page = story.page
    open_group(story)
    form = page.locator("form", has=page.locator("[value=member]"))
    form.get_by_label(re.compile("user|login", re.I)).first.fill("carol")
    story.press("Add member to draft")
    page.get_by_role("button", name="Preview").click()
    story.heading("What these changes do")
    save_draft(story, "helps out")
    open_group(story)
    page.get_by_label(re.compile("^Carol.* leaves the group")).check()
    page.get_by_role("button", name="Preview").click()
    story.heading("What these changes do")
    story.look("preview of a member who leaves")
    save_draft(story, "is done")


def change_a_rule(story: Story) -> None:
    """Enter an invalid rule and be refused. Change it with a preview. Undo that."""
    page = story.page
    story.go("Manage")
    story.go("Policy", "Manage")
    story.heading("Booking policy")
    story.look("policy")
    horizon = page.get_by_label("firm horizon", exact=True)
    was = horizon.input_value()
    horizon.fill("a fortnight")
    with story.refusing(422):
        story.press("Preview")
        expect(horizon).to_have_attribute("aria-invalid", "true")
    story.look("a rule mistyped")
    horizon.fill("13 d")
    story.press("Preview")
    preview = page.locator("#preview")
    expect(preview).to_contain_text("What changes")
    story.look("preview of a rule")
    page.get_by_label("Reason (kept in the history").fill("exam week")
    story.press("Save")
    expect(page.get_by_text("exam week").first).to_be_visible()
    expect(horizon).to_have_value("13 d")
    page.get_by_role("button", name=re.compile("^Undo change")).first.click()
    expect(horizon).to_have_value(was)
    story.look("a rule undone")


def drain(story: Story) -> None:
    page = story.page
    story.go("Manage")
    story.go("Pools", "Manage")
    story.heading("Pools")
    page.get_by_label("Reason to drain node-b").fill("new fans")
    story.press("Drain node-b")
    end = page.get_by_role("button", name="End drain of node-b")
    expect(end).to_be_visible()
    story.look("a drained node")
    end.click()
    expect(page.get_by_role("button", name="Drain node-b")).to_be_visible()


def close_and_open(story: Story) -> None:
    page = story.page
    story.go("Closures", "Manage")
    story.follow("Close GPUs")
    story.heading("Close GPUs")
    page.get_by_label("Reason").fill("power works")
    day = (datetime.now(UTC) + timedelta(days=10)).date().isoformat()
    for name, clock in (("From", "08:00"), ("To", "12:00")):
        page.get_by_label(name, exact=True).fill(day)
        page.get_by_label(f"{name}, time (24 h)").fill(clock)
    page.get_by_label("Node", exact=True).select_option("node-b")
    story.press("Preview")
    expect(page.locator("#preview")).to_be_visible()
    story.look("preview of a closure")
    story.press("Save and notify them")
    row = page.get_by_role("row", name=re.compile("power works"))
    expect(row).to_be_visible()
    story.look("closures")
    row.get_by_role("button").click()
    expect(row).to_have_count(0)


def audit(story: Story) -> None:
    page = story.page
    story.go("Audit log", "Manage")
    story.heading("Audit log")
    story.look("audit log")
    log = page.locator("table.audit")
    for sentence in ("began to drain node-b", "ended the drain of node-b"):
        expect(log).to_contain_text(f"Omar Haddad {sentence}.")
    expect(log).to_contain_text("“power works”")
    expect(log).to_contain_text("exam week")
    expect(log).to_contain_text("Omar Haddad changed groups or members")
    story.go("Reports", "Manage")
    story.look("reports")
    story.go("Replay", "Manage")
    story.look("replay")


def make_a_kiosk(story: Story) -> None:
    page = story.page
    story.go("Today", "Manage")
    story.follow("Wall links")
    story.heading("Wall links")
    page.get_by_label("Screen").fill("corridor")
    story.press("Make a link")
    link = page.get_by_label("Address of the wall").input_value()
    story.look("wall links")
    screen = page.context.browser.new_page()
    story.hear(screen)
    screen.goto(link)
    expect(screen.get_by_text(re.compile(r"^live, \d"))).to_be_visible()
    story.look("kiosk", screen)
    story.press("Revoke corridor")
    with story.refusing(404):
        screen.reload()
    screen.close()

"""Walks 2 and 3 of a student in one browser, with real processes only.

``manage.py portal`` runs on a separate folder with the demo lab in it: web, worker,
beat, ingest, two node workers, the embedded Valkey, and jobs under shims.
"""

import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.gpuportal.running import Portal, manage

SOON_MS = 20_000


@pytest.fixture
def demo_portal(
    tmp_path: Path, make_database: Callable[[Path], None]
) -> Iterator[tuple[str, dict[str, str], Path]]:
    """A running portal with the demo lab: address, logins, its folder."""
    var = tmp_path / "var"
    make_database(var / "db.sqlite3")
    done = manage(var, "demo_lab")
    assert done.returncode == 0, done.stderr
    text = (var / "secret" / "logins.txt").read_text()
    logins = dict(line.split() for line in text.splitlines())
    with Portal(var) as portal:
        yield portal.ready(), logins, var


def sign_in(page: Page, address: str, name: str, password: str) -> None:
    """Sign in and arrive at My reservations."""
    page.goto(f"{address}/login/")
    page.get_by_label("User name").fill(name)
    page.get_by_label("Password", exact=True).fill(password)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(re.compile(r"/mine/$"))


def ledger(var: Path, reservation: int) -> dict[str, int]:
    """Sum the ledger rows of a reservation by kind."""
    with sqlite3.connect(var / "db.sqlite3", timeout=20) as rows:
        return dict(
            rows.execute(
                "SELECT kind, SUM(gpu_seconds) FROM reservations_ledgerentry "
                "WHERE reservation_id = ? GROUP BY kind",
                [reservation],
            )
        )


def watch_for_errors(page: Page) -> list[str]:
    """Return a list that fills with script errors and policy violations."""
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "console",
        lambda line: (
            wrong.append(line.text) if "Content Security Policy" in line.text else None
        ),
    )
    return wrong


def see_the_board(page: Page) -> None:
    """Check that the board moves, and shows holders and intruders."""
    expect(page.get_by_text(re.compile(r"^live, \d"))).to_be_visible(timeout=SOON_MS)
    expect(page.get_by_text("someone else’s process", exact=True).first).to_be_visible(
        timeout=SOON_MS
    )
    expect(page.get_by_text("These GPUs are simulated", exact=False)).to_be_visible()


def plan_and_book(page: Page, address: str) -> int:
    """Plan a model onto two of the present Gpus and book them. Return the booking."""
    page.goto(f"{address}/plan/")
    page.get_by_label("Model", exact=True).select_option("tiny-gpt")
    # So small a model is only a little faster on two GPUs: ask for the fastest plan.
    page.get_by_label("Optimize for", exact=True).select_option("fastest")
    pair = page.locator(".plan-card", has_text=re.compile(r"\b2 GPUs\b")).first
    expect(pair).to_be_visible(timeout=SOON_MS)
    pair.get_by_role("button", name=re.compile("^Book these")).click()
    expect(page).to_have_url(re.compile("/calendar/.*plan="))
    # The verdict is above all buttons.
    expect(page.locator("#verdict")).to_contain_text(
        re.compile("firm", re.I), timeout=SOON_MS
    )
    page.locator("#book").click()
    expect(page).to_have_url(
        re.compile(r"/jobs/new/\?.*reservation=\d+"), timeout=SOON_MS
    )
    found = re.search(r"reservation=(\d+)", page.url)
    assert found is not None
    return int(found.group(1))


def train(page: Page) -> None:
    """Launch the real recipe. See its log stream, its end and its loss curve."""
    page.get_by_label("Name", exact=True).fill("first run")
    page.get_by_text("Settings of Tiny transformer").click()
    page.locator("[name='tiny-transformer.steps']").fill("6")
    page.get_by_role("button", name="Launch").click()
    expect(page.get_by_role("heading", name="first run")).to_be_visible()
    expect(page.locator("#log")).to_contain_text(
        re.compile(r"step:? 1\b"), timeout=90_000
    )
    expect(page.locator("#job-state")).to_have_text("done", timeout=90_000)
    page.get_by_role("tab", name="Charts").click()
    expect(page.locator(".chart", has_text="loss").locator("canvas")).to_be_visible()


def give_back(page: Page, address: str, reservation: int) -> None:
    """Give the rest of a running reservation back."""
    page.goto(f"{address}/reservations/{reservation}/")
    page.get_by_role("button", name="Give back now").first.click()
    page.get_by_role("dialog").get_by_role("button", name="Give back now").click()


@pytest.mark.timeout(300)
def test_a_student_plans_books_trains_and_is_charged(
    demo_portal: tuple[str, dict[str, str], Path], page: Page
) -> None:
    address, logins, var = demo_portal
    wrong = watch_for_errors(page)
    sign_in(page, address, "bob", logins["bob"])
    page.get_by_role("link", name="Board", exact=True).first.click()
    see_the_board(page)
    reservation = plan_and_book(page, address)
    train(page)

    assert ledger(var, reservation)["hold"] > 0
    give_back(page, address, reservation)
    deadline = time.monotonic() + 20
    while "charge" not in ledger(var, reservation) and time.monotonic() < deadline:
        time.sleep(0.2)
    sums = ledger(var, reservation)
    assert sums["hold"] + sums["release"] == 0
    assert 0 < sums["charge"] <= sums["hold"]

    page.goto(f"{address}/standing/")
    expect(page.get_by_text(re.compile(r"You are \d+\w+ of 20"))).to_be_visible()
    expect(page.locator("table", has_text="charge").first).to_contain_text(
        f"{reservation}"
    )
    assert wrong == []

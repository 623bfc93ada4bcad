"""A lab for the calendar's browser tests, and actions on its pages."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, time, timedelta

from django.test import Client
from django.utils import timezone
from playwright.sync_api import Browser, FloatRect, Locator, Page

from reservations.models import SitePolicy, User
from telemetry.models import Gpu
from tests.factories import (
    make_account,
    make_gpu,
    make_membership,
    make_node,
    make_pool,
    make_reservation,
    make_user,
)
from tests.pages import eventually


class Lab:
    """Two nodes, two groups, four people; tomorrow is mostly free."""

    def __init__(self) -> None:
        root = make_account("uni", title="University")
        self.people: dict[str, User] = {}
        for name, group, hue in (
            ("alice", "vision", 265),
            ("bob", "vision", 265),
            ("carol", "nlp", 30),
        ):
            account = make_account(group, hue=hue)
            account.parent = root
            account.save()
            self.people[name] = make_user(name)
            make_membership(self.people[name], account)
        self.people["omar"] = make_user("omar", is_staff=True, is_superuser=True)
        big = make_pool("NVIDIA A100 80GB", weight=10)
        small = make_pool("NVIDIA A30", weight=3)
        near, far = make_node("node-a"), make_node("node-b")
        self.gpus: list[Gpu] = [make_gpu(near, pool=big) for _ in range(4)]
        self.gpus += [
            make_gpu(far, pool=small, name="NVIDIA A30", memory_total_bytes=24 * 2**30)
            for _ in range(4)
        ]
        self.gpus[7].maintenance = True
        self.gpus[7].save()
        policy = SitePolicy.current()
        policy.grid_seconds = 900
        policy.save()

    @property
    def tomorrow(self) -> str:
        """The date that the tests book on, as addresses and inputs write it."""
        return (timezone.localdate() + timedelta(days=1)).isoformat()

    def at(self, hour: int, minute: int = 0) -> datetime:
        """Return an instant of tomorrow, by the site's clock."""
        day = timezone.localdate() + timedelta(days=1)
        return timezone.make_aware(datetime.combine(day, time(hour, minute)))

    def hold(self, name: str, gpus: list[int], start: int, end: int, **fields: object):
        """Write a Reservation of tomorrow past all rules."""
        return make_reservation(
            self.people[name],
            [self.gpus[number] for number in gpus],
            self.at(start),
            self.at(end),
            **fields,
        )


@contextmanager
def page_of(
    browser: Browser, address: str, user: User, **options: object
) -> Iterator[Page]:
    """Open a separate browser, signed in. Fail on errors of the page."""
    options.setdefault("viewport", {"width": 1360, "height": 860})
    context = browser.new_context(base_url=address, locale="en-GB", **options)
    client = Client()
    client.force_login(user)
    cookie = client.cookies["sessionid"].value
    context.add_cookies([{"name": "sessionid", "value": cookie, "url": address}])
    page = context.new_page()
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.on(
        "console",
        lambda message: (
            failures.append(message.text)
            if "Content Security Policy" in message.text
            else None
        ),
    )
    yield page
    context.close()
    assert failures == []


def row(page: Page, gpu: Gpu) -> Locator:
    """Return the cell of one GPU's day (day view): rows follow the labels."""
    label = page.locator(
        ".timeline .ec-row-head", has=page.locator(f'[data-gpu="{gpu.pk}"]')
    )
    number = label.evaluate(
        """(label) =>
          [...document.querySelectorAll(".timeline .ec-row-head")].indexOf(label)"""
    )
    return page.locator(".timeline .ec-body .ec-day").nth(number)


def at_rest(place: Locator) -> FloatRect:
    """Return where an element is, once it stays there. A drawer may move it."""
    place.scroll_into_view_if_needed()
    seen: list[FloatRect | None] = [None]

    def stays() -> bool:
        seen.append(place.bounding_box())
        return seen[-1] is not None and seen[-1] == seen[-2]

    eventually(place.page, stays)
    box = seen[-1]
    assert box is not None
    return box


def point(cell: Locator, hour: float) -> tuple[float, float]:
    """Return where an hour of the day lies in a row, in page coordinates."""
    box = at_rest(cell)
    return box["x"] + box["width"] * hour / 24, box["y"] + box["height"] / 2


def drag(page: Page, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Press, move in steps like a hand, release."""
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move((start[0] + end[0]) / 2, (start[1] + end[1]) / 2, steps=5)
    page.mouse.move(*end, steps=5)
    page.mouse.up()


def set_when(page: Page, name: str, wall: str) -> None:
    """Type a day and a time ("2026-11-24T14:00") into a field of both, and leave it."""
    day, time = wall.split("T")
    page.fill(f"#{name}-day", day)
    page.fill(f"#{name}-time", time)
    page.locator(f"#{name}-time").press("Tab")

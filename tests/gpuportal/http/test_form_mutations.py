"""Every form of every page, sent with unsuitable values.

The pages are found as a person finds them, by their links, as a student, as the head of
a group and as the operator. A form that several of them see is sent once. No answer may
be a crash. What only a database refuses is sent on PostgreSQL by `test_plain_errors`.
"""

import re
from collections import deque
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

import pytest
from django.test import Client
from django.utils import timezone

from placement.models import Job
from reservations.models import Membership
from reservations.rules.lifecycle import State
from tests.factories import make_reservation
from tests.placement.lab import make_lab, send_frame

WRONG = (
    None,
    "nul\0",
    "9" * 40,
    "-1",
    "²",
    "x" * 20_000,
    "9999-12-31T23:59",
    "0001-01-01",
    "1e400",
    "\u202e<b>'\"",
)
"""Values for every field of a form at once; None: no field at all."""
MOST_PAGES = 120
BACKEND = "django.contrib.auth.backends.ModelBackend"
LEFT_ALONE = ("/logout/", "/static/", "/admin/", "/login/")


class Page(HTMLParser):
    """The links of a page, and the names of the fields of its forms."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.forms: list[tuple[str, list[str]]] = []
        self._open = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        known = dict(attrs)
        if tag == "a" and known.get("href"):
            self.links.append(known["href"])
        elif tag == "form":
            self._open = (known.get("method") or "get").lower() == "post"
            if self._open:
                self.forms.append((known.get("action") or "", []))
        elif self._open and known.get("name") not in (None, "csrfmiddlewaretoken"):
            self.forms[-1][1].append(known["name"])
        # Buttons that send the form they are in elsewhere.
        if self._open and known.get("formaction"):
            self.forms.append((known["formaction"], list(self.forms[-1][1])))

    def handle_endtag(self, tag):
        if tag == "form":
            self._open = False


def kind_of(path: str) -> str:
    """Return an address without its numbers: one page of each kind is enough."""
    return re.sub(r"\d+", "0", path)


def forms_of(client: Client) -> dict[tuple[str, tuple[str, ...]], str]:
    """Return every form that links lead to: (kind of address, fields) -> address."""
    found: dict[tuple[str, tuple[str, ...]], str] = {}
    seen, waiting = {"/"}, deque(["/"])
    while waiting and len(seen) < MOST_PAGES:
        path = waiting.popleft()
        answer = client.get(path)
        assert answer.status_code < 500, path
        if not answer.get("Content-Type", "").startswith("text/html"):
            continue
        page = Page(answer.content.decode())
        for action, fields in page.forms:
            address = urlsplit(urljoin(path, action)).path
            if not address.startswith(LEFT_ALONE):
                key = (kind_of(address), tuple(sorted(set(fields))))
                found.setdefault(key, address)
        for link in page.links:
            there = urlsplit(urljoin(path, link))
            kind = kind_of(there.path)
            if there.netloc or there.scheme or kind in seen:
                continue
            if not there.path.startswith(LEFT_ALONE):
                seen.add(kind)
                waiting.append(there.path)
    return found


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_form_crashes(alice, bob, omar, transactional_db, redis_client, settings):
    settings.BOOK_RATE_PER_MINUTE = 10**9
    Membership.objects.filter(user=bob).update(is_head=True)
    gpus = make_lab()
    send_frame(redis_client)
    for number, user in enumerate((alice, bob)):
        row = make_reservation(user, [gpus[number]], state=State.ACTIVE)
        Job.objects.create(
            reservation=row,
            owner=user,
            node=gpus[number].node,
            name="try",
            kind="recipe",
            recipe="burn-in",
            attempt=1,
            state="running",
            ordered_at=timezone.now(),
            started_at=timezone.now(),
        )
    clients, found = {}, {}
    for user in (omar, bob, alice):
        clients[user] = Client(raise_request_exception=False)
        clients[user].force_login(user, backend=BACKEND)
        forms = forms_of(clients[user])
        assert len(forms) >= 10, sorted(forms)
        found |= {key: (user, address) for key, address in forms.items()}
    assert {user for user, _ in found.values()} == set(clients)
    broken = []
    for (_, fields), (user, address) in found.items():
        broken += crashes(clients[user], user, fields, address)
    assert not broken


def crashes(client, user, fields, address):
    """Send a form with each unsuitable value; yield what crashed."""
    for value in WRONG:
        sent = {} if value is None else dict.fromkeys(fields, value)
        answer = client.post(address, sent)
        if answer.status_code == 302 and answer.url.startswith("/login/"):
            # A form before this one has ended the session.
            client.force_login(user, backend=BACKEND)
            answer = client.post(address, sent)
        if answer.status_code >= 500 and answer.status_code != 503:
            yield user, address, value and value[:20], answer.status_code
        if "sessionid" in answer.cookies and "_auth_user_id" not in client.session:
            client.force_login(user, backend=BACKEND)

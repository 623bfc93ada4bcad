"""People whom release 0.1.0 signed in stay signed in after the upgrade."""

import asyncio
from datetime import timedelta
from http.cookies import SimpleCookie

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.contrib.sessions.models import Session
from django.db import connection, connections
from django.db.migrations.recorder import MigrationRecorder
from django.middleware.csrf import get_token
from django.test import Client, RequestFactory
from django.utils import timezone

from gpuportal.alerts.consumers import AlertsConsumer
from gpuportal.asgi import application
from gpuportal.upgrade import earlier_cookies
from tests.factories import make_user
from tests.sockets import PATIENCE_SECONDS, WebsocketCommunicator

pytestmark = [pytest.mark.django_db(transaction=True)]
NEW, NEW_CSRF = "__Host-sessionid", "__Host-csrftoken"
HEADERS = [(b"host", b"127.0.0.1"), (b"origin", b"http://127.0.0.1")]


@pytest.fixture
def key(settings):
    """A session that 0.1.0 began, on a portal that was upgraded one hour later."""
    client = Client()
    client.force_login(make_user("alice"))
    settings.SESSION_COOKIE_NAME, settings.CSRF_COOKIE_NAME = NEW, NEW_CSRF
    upgraded(timedelta(hours=1))
    yield client.cookies["sessionid"].value
    earlier_cookies._last_end.cache_clear()
    # The thread of database_sync_to_async stays and would keep its connection.
    asyncio.run(sync_to_async(connections.close_all)())


def upgraded(later: timedelta) -> None:
    app, name = earlier_cookies.UPGRADE
    MigrationRecorder.Migration.objects.filter(app=app, name=name).update(
        applied=timezone.now() + later
    )
    earlier_cookies._last_end.cache_clear()


async def answer_of(path: str, cookie: str, *, method: str = "GET", body: bytes = b""):
    """Ask the whole application; its status and the cookies that it sets."""
    scope = {"type": "http", "method": method, "path": path, "query_string": b""}
    form = (b"content-type", b"application/x-www-form-urlencoded")
    scope |= {"http_version": "1.1", "scheme": "http", "server": ("127.0.0.1", 80)}
    scope["headers"] = [*HEADERS, form, (b"cookie", cookie.encode())]
    asked = ApplicationCommunicator(application, scope)
    await asked.send_input({"type": "http.request", "body": body})
    start = await asked.receive_output(PATIENCE_SECONDS)
    found: SimpleCookie = SimpleCookie()
    for name, value in start["headers"]:
        if name.lower() == b"set-cookie":
            found.load(value.decode())
    while (await asked.receive_output(PATIENCE_SECONDS)).get("more_body"):
        pass
    await asked.wait()
    return start["status"], found


def ask(path: str, cookie: str, **more):
    return asyncio.run(answer_of(path, cookie, **more))


def test_a_page_is_answered_and_the_browser_gets_the_names_of_today(key):
    status, cookies = ask("/mine/", f"sessionid={key}; csrftoken=t")
    assert status == 200
    assert cookies[NEW].value == key and cookies[NEW]["httponly"]
    assert cookies[NEW]["path"] == "/" and cookies[NEW]["samesite"] == "Lax"
    assert cookies[NEW]["expires"]
    # A token that Django does not make is replaced, such as one with a line break.
    status, cookies = ask("/mine/", rf'sessionid={key}; csrftoken="t\012x"')
    assert status == 200 and cookies[NEW_CSRF].value.isalnum()
    status, cookies = ask("/mine/", f"sessionid={key}; {NEW}={key}")
    assert status == 200 and NEW not in cookies


def test_an_open_page_connects_again_with_the_cookies_that_it_has(key):
    async def work():
        page = WebsocketCommunicator(
            application,
            "/ws/alerts/",
            headers=[*HEADERS, (b"cookie", f"sessionid={key}".encode())],
        )
        await page.send_input({"type": "websocket.connect"})
        accepted = await page.receive_output(PATIENCE_SECONDS)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while page.output_queue.empty() and not AlertsConsumer.open_sockets:
                await asyncio.sleep(0.01)
        closed = not page.output_queue.empty()
        await page.disconnect()
        return accepted, closed

    accepted, closed = asyncio.run(work())
    assert accepted["type"] == "websocket.accept" and not closed
    [(name, value)] = accepted["headers"]
    assert name == b"set-cookie" and value.startswith(f"{NEW}={key};".encode())


def test_a_form_that_was_open_during_the_upgrade_is_sent_and_sign_out_ends_it(key):
    request = RequestFactory().get("/")
    token = get_token(request)
    secret = request.META["CSRF_COOKIE"]
    body = f"csrfmiddlewaretoken={token}".encode()
    earlier = f"sessionid={key}; csrftoken={secret}"
    status, cookies = ask("/logout/", earlier, method="POST", body=body)
    assert status == 302
    # The answer itself takes the session's cookie away, and that one stands.
    assert cookies[NEW].value == "" and cookies[NEW_CSRF].value == secret
    status, cookies = ask("/mine/", earlier)
    assert status == 302 and NEW not in cookies
    assert ask("/logout/", earlier, method="POST", body=b"")[0] == 403


def test_a_page_of_another_host_replaces_no_cookie_by_an_earlier_name(key):
    """It can set cookies of the whole domain, beside those of the portal's host."""

    def given(shown):
        status, cookies = ask("/mine/", shown)
        values = [cookies[n].value if n in cookies else "" for n in (NEW, NEW_CSRF)]
        return status, *values

    for shown in (f"sessionid=x; sessionid={key}", f"sessionid={key};sessionid=x"):
        assert given(f"{shown}; csrftoken=t") == (302, "", "")
    for own in (f"{NEW}=", f"{NEW}=ended"):
        assert given(f"{own}; sessionid={key}") == (302, "", "")
    twice = "csrftoken=own; csrftoken=tossed"
    for csrf in (f"csrftoken=tossed; {NEW_CSRF}={'o' * 32}", twice):
        status, session, secret = given(f"sessionid={key}; {csrf}")
        assert (status, session) == (200, key) and secret not in ("own", "tossed")


def test_no_text_of_an_earlier_name_writes_a_header(key):
    text = r'"t\015\012Set-Cookie: a=b\073 c"'
    status, cookies = ask("/mine/", f"sessionid={key}; csrftoken={text}")
    assert status == 200 and cookies.keys() == {NEW, NEW_CSRF}


@pytest.mark.parametrize(
    "case",
    ["workspaces", "begun after the upgrade", "ended", "unknown", "NUL", "long ago"],
)
def test_no_other_session_is_taken_from_the_earlier_name(key, settings, case):
    if case == "workspaces":
        settings.WORKSPACE_ORIGIN = "https://*.ws.gpu.lab"
    if case == "begun after the upgrade":
        upgraded(-timedelta(hours=2))
    if case == "ended":
        Session.objects.update(expire_date=timezone.now())
    if case == "long ago":
        upgraded(-timedelta(days=15))
        Session.objects.update(expire_date=timezone.now() + timedelta(seconds=60))
    shown = {"unknown": "x" * 32, "NUL": r'"\000"'}.get(case, key)
    status, cookies = ask("/mine/", f"sessionid={shown}; csrftoken=t")
    assert status == 302
    assert not {NEW, NEW_CSRF} & cookies.keys()


def test_a_database_that_is_away_or_not_migrated_signs_nobody_in(key):
    async def found():
        return await sync_to_async(earlier_cookies.earlier_session)(key, timezone.now())

    app, name = earlier_cookies.UPGRADE
    MigrationRecorder.Migration.objects.filter(app=app, name=name).delete()
    earlier_cookies._last_end.cache_clear()
    try:
        assert earlier_cookies.last_end() is None
        assert asyncio.run(found()) is None
    finally:
        MigrationRecorder(connection).record_applied(app, name)

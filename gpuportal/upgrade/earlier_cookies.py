"""Keep people signed in when a portal of release 0.1.0 is upgraded.

0.1.0 stored the session under the cookie names of Django. Today's names begin with
``__Host-``, so that a workspace below the portal's domain cannot set them
(docs/access.md). A browser that still has only the earlier names gets today's
names with the same values, if the session is one that 0.1.0 began.

Another host of the same domain can set the earlier names, too, as it could under 0.1.0.
It can sign in a browser that has no session. It cannot replace a session: a browser
that has today's name keeps it, and one that shows an earlier name twice gets nothing.

This never happens on a portal that offers workspaces, nor later than a session's length
after the upgrade. Remove this module with the first release that cannot upgrade 0.1.0.
"""

from collections import Counter
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from channels.db import database_sync_to_async
from django.conf import settings
from django.contrib.sessions.models import Session
from django.db import DatabaseError
from django.db.migrations.recorder import MigrationRecorder
from django.http import HttpResponse
from django.http.cookie import parse_cookie
from django.utils import timezone

EARLIER_SESSION, EARLIER_CSRF = "sessionid", "csrftoken"
UPGRADE = ("placement", "0005_workspace")
"""The migration that came with the names of today."""
RESTART_ALLOWANCE = timedelta(hours=1)
"""Between that migration and the end of the processes of 0.1.0."""


class EarlierCookies:
    """Runs ``application`` with the cookies of today's names, and sends them."""

    def __init__(self, application: Any) -> None:
        self.application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Look the session up only if the browser has only the earlier name."""
        values = _values(scope) if _renamed() else {}
        found = None
        key = values.get(EARLIER_SESSION)
        if key and settings.SESSION_COOKIE_NAME not in values:
            found = await database_sync_to_async(earlier_session)(key, timezone.now())
        if found is None:
            await self.application(scope, receive, send)
            return
        cookies = _cookies(found, values)
        added = "; ".join(f"{name}={one.coded_value}" for name, one in cookies.items())
        headers = [*scope["headers"], (b"cookie", added.encode("latin1"))]

        async def send_with_cookies(message: dict[str, Any]) -> None:
            if message["type"] in ("http.response.start", "websocket.accept"):
                message = message | {"headers": _with(message, cookies)}
            await send(message)

        await self.application(
            scope | {"headers": _joined(headers)}, receive, send_with_cookies
        )


def earlier_session(key: str, now: datetime) -> Session | None:
    """Return the live session of this key if 0.1.0 began it, otherwise None.

    The end of a session is its last change plus the length of sessions.
    """
    last = last_end()
    if last is None or now >= last:
        return None
    try:
        return Session.objects.filter(
            session_key=key, expire_date__gt=now, expire_date__lte=last
        ).first()
    except DatabaseError:
        return None  # The page says that the database is away.


def last_end() -> datetime | None:
    """Return when the last session of 0.1.0 ends. None: not known."""
    try:
        return _last_end()
    except (DatabaseError, LookupError):
        return None


@cache
def _last_end() -> datetime:
    app, name = UPGRADE
    rows = MigrationRecorder.Migration.objects.filter(app=app, name=name)
    applied: datetime | None = rows.values_list("applied", flat=True).first()
    if applied is None:
        raise LookupError(name)
    length = timedelta(seconds=settings.SESSION_COOKIE_AGE)
    return applied + RESTART_ALLOWANCE + length


def _renamed() -> bool:
    return (
        settings.SESSION_COOKIE_NAME != EARLIER_SESSION
        and not settings.WORKSPACE_ORIGIN
    )


def _values(scope: dict[str, Any]) -> dict[str, str]:
    """Return the cookies, without earlier names that the browser shows twice.

    One of the two can be of another host, and a request does not say which.
    """
    headers = scope.get("headers", [])
    lines = [value.decode("latin1") for name, value in headers if name == b"cookie"]
    text = ";".join(lines)
    names = Counter(one.partition("=")[0].strip() for one in text.split(";"))
    values = parse_cookie(text)
    for name in (EARLIER_SESSION, EARLIER_CSRF):
        if names[name] > 1:
            values.pop(name, None)
    return values


def _cookies(session: Session, values: dict[str, str]) -> Any:
    site: Any = settings
    answer = HttpResponse()
    answer.set_cookie(
        site.SESSION_COOKIE_NAME,
        session.session_key,
        expires=session.expire_date,
        path=site.SESSION_COOKIE_PATH,
        secure=bool(site.SESSION_COOKIE_SECURE),
        httponly=bool(site.SESSION_COOKIE_HTTPONLY),
        samesite=site.SESSION_COOKIE_SAMESITE,
    )
    token = values.get(EARLIER_CSRF, "")
    is_token = token.isascii() and token.isalnum()
    if is_token and site.CSRF_COOKIE_NAME not in values:
        # So that a form which is open during the upgrade can be sent.
        answer.set_cookie(
            site.CSRF_COOKIE_NAME,
            token,
            max_age=site.CSRF_COOKIE_AGE,
            path=site.CSRF_COOKIE_PATH,
            secure=bool(site.CSRF_COOKIE_SECURE),
            httponly=bool(site.CSRF_COOKIE_HTTPONLY),
            samesite=site.CSRF_COOKIE_SAMESITE,
        )
    return answer.cookies


def _joined(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers with one line of cookies, because readers take only one."""
    lines = [value for name, value in headers if name == b"cookie"]
    others = [one for one in headers if one[0] != b"cookie"]
    return [*others, (b"cookie", b"; ".join(lines))]


def _with(message: dict[str, Any], cookies: Any) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer with the cookies that it does not set itself."""
    headers = list(message.get("headers", []))
    names = {
        value.partition(b"=")[0].decode("latin1")
        for name, value in headers
        if name.lower() == b"set-cookie"
    }
    added = [
        (b"set-cookie", one.OutputString().encode("latin1"))
        for name, one in cookies.items()
        if name not in names
    ]
    return [*headers, *added]

"""Allow websockets only from pages of the same origin.

A browser sends its cookies with every websocket, even if a page of another site opens
it, and cookies have no port. So the page's origin must be exactly the portal's: scheme,
host and port, as Django's CSRF check compares them for a form. ``CSRF_TRUSTED_ORIGINS``
are trusted here, too.
"""

from typing import Any
from urllib.parse import urlsplit

from channels.security.websocket import WebsocketDenier
from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest
from django.utils.http import is_same_domain

from gpuportal.http.bodies import Receive, Scope

PORTS = {"http": 80, "https": 443}


class _Handshake(HttpRequest):
    """The headers of the request that opens a websocket."""

    def __init__(self, *, secure: bool) -> None:
        super().__init__()
        self._secure = secure

    def _get_scheme(self) -> str:
        return "https" if self._secure else "http"


class SameOrigin:
    """Passes a websocket to ``application`` if its page has the same origin."""

    def __init__(self, application: Any) -> None:
        self.application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Any) -> None:
        """Pass it on, or answer 403."""
        headers = [
            (name.decode("latin1"), value.decode("latin1"))
            for name, value in scope.get("headers", [])
        ]
        origins = [value for name, value in headers if name == "origin"]
        if len(origins) == 1 and _is_same_origin(
            origins[0], _request_of(scope, dict(headers))
        ):
            await self.application(scope, receive, send)
        else:
            await WebsocketDenier()(scope, receive, send)


def _request_of(scope: Scope, headers: dict[str, str]) -> HttpRequest:
    """Return what Django needs to compute the requested scheme and host."""
    request = _Handshake(secure=scope.get("scheme") in ("wss", "https"))
    server = scope.get("server") or ("", "")
    request.META = {
        f"HTTP_{name.upper().replace('-', '_')}": value
        for name, value in headers.items()
    }
    request.META |= {"SERVER_NAME": server[0], "SERVER_PORT": str(server[1])}
    return request


def _is_same_origin(origin: str, request: HttpRequest) -> bool:
    try:
        host = request.get_host()
        wanted = (str(request.scheme), *_host_and_port(f"{request.scheme}://{host}"))
        parts = urlsplit(origin)
        there = (parts.scheme, *_host_and_port(origin))
    except (DisallowedHost, ValueError):
        return False
    return bool(there[1]) and (there == wanted or _trusted(parts.scheme, parts.netloc))


def _host_and_port(address: str) -> tuple[str, int | None]:
    parts = urlsplit(address)
    return (parts.hostname or "").lower(), parts.port or PORTS.get(parts.scheme)


def _trusted(scheme: str, netloc: str) -> bool:
    for trusted in settings.CSRF_TRUSTED_ORIGINS:
        parts = urlsplit(trusted)
        if parts.scheme == scheme and is_same_domain(
            netloc.lower(), parts.netloc.lstrip("*").lower()
        ):
            return True
    return False

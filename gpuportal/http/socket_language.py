"""The language of a websocket, in which its consumer sends sentences."""

from typing import Any

from django.http import HttpRequest
from django.http.cookie import parse_cookie
from django.utils import translation

from reservations.notifications.reader_locale import chosen_language


class SocketLanguage:
    """Runs ``application`` in the language of its User, or else of the browser.

    It needs the User in the scope. A page that changes its language opens its sockets
    again, because it is loaded again.
    """

    def __init__(self, application: Any) -> None:
        self.application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Activate the language in this connection's context only."""
        found = chosen_language(scope.get("user")) or language_of_browser(scope)
        with translation.override(found):
            await self.application(scope, receive, send)


def language_of_browser(scope: dict[str, Any]) -> str:
    """Return the code of the language that a connection's headers request."""
    request = HttpRequest()
    for name, value in scope.get("headers", []):
        if name == b"accept-language":
            request.META["HTTP_ACCEPT_LANGUAGE"] = value.decode("latin1")
        elif name == b"cookie":
            request.COOKIES = parse_cookie(value.decode("latin1"))
    return translation.get_language_from_request(request)

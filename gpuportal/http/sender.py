"""The sender of a request, from its headers alone, before its body is read."""

import io
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user
from django.core.handlers.asgi import ASGIRequest
from django.db import close_old_connections
from django.http import HttpRequest
from django.utils.module_loading import import_string

from gpuportal.http.token_auth import bearer, user_of
from reservations.models import User

Scope = dict[str, Any]


def sender_of(request: HttpRequest) -> int | None:
    """Return the number of the User whose session or token a request carries.

    None: it has neither, or one that is not valid. A token takes precedence over the
    session, as everywhere in the API.
    """
    if "Authorization" in request.headers:
        user = user_of(bearer(request), scopes=[])
        return None if user is None else user.pk
    key = request.COOKIES.get(settings.SESSION_COOKIE_NAME)
    if not key:
        return None
    engine: Callable[..., Any] = import_string(
        f"{settings.SESSION_ENGINE}.SessionStore"
    )
    request.session = engine(key)
    found = get_user(request)
    return found.pk if isinstance(found, User) and found.is_active else None


def sender_of_scope(scope: Scope) -> int | None:
    """Return `sender_of` for a connection whose body has not arrived yet.

    Opens and closes a database connection, so it runs on a thread of the handler.
    """
    close_old_connections()
    try:
        return sender_of(ASGIRequest(scope, io.BytesIO()))
    except UnicodeDecodeError:
        return None
    finally:
        close_old_connections()

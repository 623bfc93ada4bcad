"""The authentication backend of sessions that an identity provider began.

A session names its backend. So these sessions end if `LOGIN` no longer lists oidc.
"""

from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.http import HttpRequest

from reservations.models import User


class OidcBackend(ModelBackend):
    """Loads the person of a session. It accepts no password."""

    def authenticate(
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        **kwargs: Any,
    ) -> User | None:
        """Sign nobody in."""
        return None

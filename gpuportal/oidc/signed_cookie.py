"""A signed cookie that ends, for what the portal remembers of a browser.

A session would let anybody fill the table of sessions before they sign in.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core import signing
from django.http import HttpRequest
from django.http.response import HttpResponseBase


@dataclass(frozen=True)
class SignedCookie:
    """One kind of cookie."""

    name: str
    salt: str
    lasts_seconds: int

    @property
    def full_name(self) -> str:
        """Return the name in the browser. No other host can set its prefix."""
        return f"__Host-{self.name}" if settings.PRODUCTION else self.name

    def keep(
        self,
        response: HttpResponseBase,
        fields: Mapping[str, Any],
        *,
        by_form: bool = False,
    ) -> None:
        """Store the fields in the browser. They replace earlier ones.

        Args:
            by_form: another site sends the browser back with a form. Browsers add a
                cookie to it only with SameSite=None, and only over https.
        """
        response.set_cookie(
            self.full_name,
            signing.dumps(dict(fields), salt=self.salt, compress=True),
            max_age=self.lasts_seconds,
            secure=settings.PRODUCTION,
            httponly=True,
            samesite="None" if by_form and settings.PRODUCTION else "Lax",
        )

    def drop(self, response: HttpResponseBase) -> None:
        """Remove it from the browser."""
        response.set_cookie(
            self.full_name,
            max_age=0,
            secure=settings.PRODUCTION,
            httponly=True,
            samesite="Lax",
        )

    def fields(self, request: HttpRequest) -> dict[str, Any] | None:
        """Return the fields. None: there are none, they are old, or not signed here."""
        try:
            return dict(
                signing.loads(
                    request.COOKIES.get(self.full_name, ""),
                    salt=self.salt,
                    max_age=self.lasts_seconds,
                )
            )
        except (signing.BadSignature, TypeError):
            return None

"""Portal sessions that an identity provider began, and that it may end.

A provider names a person and a session there in the assertion of the sign-in, and again
in a request to end it (SAML 2.0 Profiles, section 4.4). The session of the portal keeps
these names.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.models import Session

from reservations.accounts.second_factors.sign_in import (
    PENDING,
    PROVIDER_KEY,
    PROVIDER_SESSION,
)

LONGEST_NAME = 1000
"""Longest of the names that a session keeps. The standard allows 256 characters."""


@dataclass(frozen=True)
class ProviderSession:
    """A session at a provider, in its own names."""

    name: str
    """The NameID of the person."""
    format: str = ""
    qualifier: str = ""
    portal_qualifier: str = ""
    index: str = ""
    """The SessionIndex. "": the provider gave none."""

    @property
    def can_be_kept(self) -> bool:
        """Return whether the provider gave a NameID, and no name is too long."""
        names = (self.name, self.format, self.qualifier, self.portal_qualifier)
        longest = max(map(len, (*names, self.index)))
        return bool(self.name) and longest <= LONGEST_NAME

    def is_named_by(self, name: str, indexes: Collection[str]) -> bool:
        """Return whether a request to end sessions of a person means this one.

        Args:
            name: the NameID.
            indexes: of the sessions. Empty: all sessions of the person.
        """
        if name != self.name:
            return False
        return not indexes or not self.index or self.index in indexes


def provider_session(
    data: Mapping[str, Any] | SessionBase, *, provider: str
) -> ProviderSession | None:
    """Return the session at a provider that began a session of the portal.

    Args:
        data: the content of the session. It may wait for the second factor.
        provider: the key of the provider.
    """
    begun = data.get(PROVIDER_KEY) == provider
    held = data.get(PROVIDER_SESSION) if begun else None
    if pending := data.get(PENDING):
        begun = pending["provider"] == provider
        held = pending.get("provider_session") if begun else held
    return ProviderSession(**held) if held else None


def end_provider_sessions(
    *, provider: str, name: str, indexes: Collection[str], now: datetime
) -> int:
    """End the sessions that a provider names. Return how many there were.

    Websockets, terminals and workspaces end with their session. API tokens, ssh keys
    and the tokens of services go on, as after any other sign-out.

    Cost: every live session is decoded, about 50 microseconds each.
    """
    ended = [
        row.pk
        for row in Session.objects.filter(expire_date__gt=now).iterator()
        if (held := provider_session(row.get_decoded(), provider=provider))
        and held.is_named_by(name, indexes)
    ]
    Session.objects.filter(pk__in=ended).delete()
    return len(ended)

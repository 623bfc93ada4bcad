"""The authentication backend of people who type the password of the LDAP directory.

It comes after the portal's own passwords, so that the directory never sees one of these
that is right.
"""

import logging
from typing import Any

from axes.helpers import get_client_ip_address
from django.conf import settings
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.signals import user_login_failed
from django.http import HttpRequest
from django.utils import timezone
from django.views.decorators.debug import sensitive_variables

from gpuportal.directory.directory_client import (
    DirectoryAnswerInvalid,
    DirectoryAway,
    claims_of_login,
)
from reservations.accounts.identities import service
from reservations.accounts.identities.directory_settings import Directory
from reservations.accounts.identities.queries import directory
from reservations.accounts.identities.rules import Claims, SignInRefused
from reservations.models import User
from reservations.rules.errors import TooFast
from reservations.web.rate_limits import check_address_rate
from telemetry.protocol.sentences import sentence

log = logging.getLogger(__name__)
PER_MINUTE = 300
"""Most calls for one address. A whole course may come from one."""
REFUSAL = "directory_refusal"
"""Attribute of a request: why the directory signed nobody in, if there is more to say
than that the user name or the password is wrong."""


class DirectoryBackend(ModelBackend):
    """Finds people by the stable identifier of their entry, and loads sessions."""

    @sensitive_variables("password", "kwargs")
    def authenticate(
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        **kwargs: Any,
    ) -> User | None:
        """Return the person of a user name and a password.

        A refusal says more than "wrong", so it is an exception: django-axes counts no
        failure, and nobody is locked out because the directory was away. But if the
        portal has a password for this user name, one was just guessed. Then the
        failure counts, and the request carries the refusal.

        Raises:
            SignInRefused: the directory is away or not usable, or the person may not
                sign in.
            TooFast: the limit of the address is exceeded.
        """
        found = directory()
        if found is None or not username or not password:
            return None
        try:
            claims = claims_at(found, request, user=username, password=password)
            if claims is None:
                return None
            return service.sign_in(provider=found, claims=claims, now=timezone.now())
        except SignInRefused as refusal:
            if request is None or not _has_password(username):
                raise
            setattr(request, REFUSAL, refusal)
            return None
        except TooFast:
            if request is not None and _has_password(username):
                count_failure(request, username)
            raise


@sensitive_variables("password")
def claims_at(
    found: Directory, request: HttpRequest | None, *, user: str, password: str
) -> Claims | None:
    """Return what the directory says about a person. None: it does not know them.

    Raises:
        SignInRefused: it is away or not usable.
        TooFast: the limit of the address is exceeded.
    """
    if request is not None:
        check_address_rate(
            "login-ldap",
            address=get_client_ip_address(request) or "unknown",
            per_minute=PER_MINUTE,
            now=timezone.now(),
        )
    try:
        return claims_of_login(found, user=user, password=password)
    except DirectoryAway as error:
        log.warning("the LDAP directory is away: %s", error)
        raise SignInRefused(
            sentence("{provider} does not answer", provider=found.name),
            # The reason may name hosts of the site. The log and the doctor have it.
            sentence(
                "You cannot sign in with {provider} just now. Try again in a minute. "
                "People who are signed in can go on working.",
                provider=found.name,
            ),
            status=503,
        ) from error
    except DirectoryAnswerInvalid as error:
        log.warning("the LDAP directory: %s", error)
        raise SignInRefused(
            sentence("The answer of {provider} is not valid", provider=found.name),
            # The reason may name entries of the directory. The log and the doctor have
            # it.
            sentence(
                "You were not signed in. Contact the lab admin if this happens again."
            ),
            status=502,
        ) from error


def count_failure(request: HttpRequest, user: str) -> None:
    """Send the signal of a failed sign-in, which django-axes counts."""
    user_login_failed.send(__name__, credentials={"username": user}, request=request)


def _has_password(username: str) -> bool:
    """Return whether the portal has a password for a user name."""
    if not settings.LOGIN_SETTINGS.passwords:
        return False
    found = User.objects.filter(username=username, is_active=True).first()
    return found is not None and found.has_usable_password()

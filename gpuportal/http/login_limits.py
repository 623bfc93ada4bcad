"""Password spraying: one password tried on many names from one address.

django-axes counts the failures of one name from one address. It never counts an
attacker who tries many names a few times each. So the names are counted too: those that
failed from one address within a quarter of an hour and never signed in from it. If
there are too many, only people who have signed in from that address before still may.
This does not lock out a lab of 300 behind one address, because its people are known
there. Of a new course, as many people as the limit would have to fail within the
quarter of an hour.
"""

from datetime import datetime, timedelta
from typing import Any

from axes.helpers import get_client_ip_address
from axes.models import AccessAttempt, AccessLog
from django.conf import settings
from django.contrib.sessions.models import Session
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.utils import timezone

from reservations.accounts.openid_clients.service import clear_tokens
from reservations.models import SignUp, UsedAssertion

MOST_STRANGE_NAMES = 20
"""Most names that fail from one address within ``WINDOW`` and never signed in from
it."""
WINDOW = timedelta(minutes=15)
DAY = timedelta(days=1)
KNOWN = timedelta(days=30)
"""How long a login of a name from an address counts."""


class SprayBackend:
    """Refuses names unknown to an address from which many names were tried.

    It signs nobody in and knows no User. It comes before the backend that does.
    """

    def authenticate(
        self,
        request: HttpRequest | None,
        username: str | None = None,
        password: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Let the next backend decide.

        Raises:
            PermissionDenied: too many names were tried from this address.
        """
        if request is None or username is None:
            return
        address = get_client_ip_address(request)
        if address and is_sprayed(address, username, now=timezone.now()):
            # django-axes answers 429, as for one name.
            request.axes_locked_out = True  # type: ignore[attr-defined]
            raise PermissionDenied


def is_sprayed(address: str, username: str, *, now: datetime) -> bool:
    """Return whether a name must not be tried from an address just now."""
    known = AccessLog.objects.filter(
        ip_address=address, attempt_time__gt=now - KNOWN
    ).values("username")
    if known.filter(username=username).exists():
        return False
    strange = (
        AccessAttempt.objects.filter(
            ip_address=address,
            attempt_time__gt=now - WINDOW,
            failures_since_start__gt=0,
        )
        .exclude(username=username)
        .exclude(username__in=known)
        .order_by()
        .values("username")
        .distinct()
    )
    return strange.count() >= MOST_STRANGE_NAMES


def clear_logins(now: datetime) -> dict[str, int]:
    """Delete ended sessions and tokens, and logins and failures no longer used."""
    cooled = now - timedelta(hours=settings.AXES_COOLOFF_TIME) - WINDOW
    gone = {
        "sessions": Session.objects.filter(expire_date__lt=now),
        "logins": AccessLog.objects.filter(attempt_time__lt=now - KNOWN),
        "failures": AccessAttempt.objects.filter(attempt_time__lt=cooled),
    }
    gone["assertions"] = UsedAssertion.objects.filter(expires_at__lt=now)
    gone["sign-ups"] = SignUp.objects.filter(used_at=None, created_at__lt=now - DAY)
    counts = {name: rows.delete()[0] for name, rows in gone.items()}
    return counts | {"tokens": clear_tokens(now)}

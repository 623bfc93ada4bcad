"""The language and the time zone in which a person reads pages, mails and notices."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from django.conf import settings
from django.utils import translation


def chosen_language(user: object) -> str:
    """Return the code of the language that a User chose, for example "de".

    "" if they chose none, if it is no longer offered, and for visitors.
    """
    own = getattr(user, "language", "")
    return own if own in dict(settings.LANGUAGES) else ""


def language_of(user: object) -> str:
    """Return the code of a User's language. Without a choice, the site's."""
    return chosen_language(user) or settings.LANGUAGE_CODE


@contextmanager
def with_language_of(user: object) -> Iterator[None]:
    """Use this User's language inside the block: for mails, notices, messages."""
    with translation.override(language_of(user)):
        yield


@cache
def zone_names() -> tuple[str, ...]:
    """Return the IANA names "Area/Place" and UTC, sorted."""
    areas = {
        *("Africa", "America", "Antarctica", "Asia", "Atlantic", "Australia"),
        *("Europe", "Indian", "Pacific"),
    }
    names = {name for name in available_timezones() if name.split("/")[0] in areas}
    return ("UTC", *sorted(names))


def zone_of(name: str) -> ZoneInfo | None:
    """Return a zone by its name; None for "" and for a name that is unknown.

    >>> zone_of("Europe/Berlin").key, zone_of(""), zone_of("Nowhere/Land")
    ('Europe/Berlin', None, None)
    """
    return ZoneInfo(name) if name in zone_names() else None

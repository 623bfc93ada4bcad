"""Notices for their User, with the names that the User may see."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo

from django.utils import timezone

from reservations.models import Notice, Reservation, User
from reservations.notifications.reader_locale import with_language_of, zone_of
from reservations.notifications.text.notice_forms import form_of, notice_sentence
from reservations.rules.notice_values import NoticeValues
from reservations.store.booking_facts import site_policy
from reservations.store.calendar_queries import Reader
from telemetry.web.translation import translated

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NoticeInfo:
    """One Notice, in words."""

    pk: int
    kind: str
    title: str
    icon: str
    """Name of a symbol of the site's sprite."""
    text: str
    reservation_pk: int | None
    url: str
    """The page with details: a path of this site."""
    told_at: datetime
    read: bool


def notices_of(user: User, *, unread: bool = False, most: int) -> list[NoticeInfo]:
    """Return a User's own Notices, newest first."""
    rows = Notice.objects.unread(user) if unread else Notice.objects.filter(user=user)
    return notices_with_text(rows[:most], user)


def notices_with_text(rows: Iterable[Notice], user: User) -> list[NoticeInfo]:
    """Return Notices of one User with their texts, in few queries."""
    found = list(rows)
    if not found:
        return []
    pks = {row.reservation_id for row in found if row.reservation_id is not None}
    booked = Reservation.objects.prefetch_related("allocations__gpu__node").in_bulk(pks)
    whose = _Others.of(found, user)
    zone = zone_of(user.time_zone) or timezone.get_default_timezone()
    return [
        NoticeInfo(
            pk=row.pk,
            kind=row.kind,
            title=Notice.Kind(row.kind).label,
            icon=form_of(row.kind).symbol,
            text=_notice_sentence(
                row, booked.get(row.reservation_id or 0), whose.name(row), zone
            ),
            reservation_pk=row.reservation_id,
            url=_url(row),
            told_at=row.told_at,
            read=row.read_at is not None,
        )
        for row in found
    ]


def notices_to_send(rows: Iterable[Notice], user: User) -> list[NoticeInfo]:
    """Return Notices of one User as plain text in that User's language.

    For mails, webhooks and sockets, where no page sets the language.
    """
    with with_language_of(user):
        return [
            replace(one, title=translated(one.title), text=translated(one.text))
            for one in notices_with_text(rows, user)
        ]


def _notice_sentence(
    row: Notice, about: Reservation | None, who: str, zone: tzinfo
) -> str:
    gpus = sorted(str(a.gpu) for a in about.allocations.all()) if about else []
    told = NoticeValues(
        row.detail,
        zone=zone,
        start=about.start if about else None,
        end=about.end if about else None,
        gpus=", ".join(gpus),
        who=who,
    )
    title = Notice.Kind(row.kind).label
    try:
        return notice_sentence(row.kind, title, told)
    except (LookupError, TypeError, ValueError):
        # One row without its numbers must not break every page of its User.
        log.exception("notice %s has no words", row.pk)
        return f"{title}."


def _url(row: Notice) -> str:
    """Return the page with details. ``detail["url"]`` has priority."""
    url = row.detail.get("url")
    if isinstance(url, str) and url.startswith("/") and not url.startswith("//"):
        return url
    if "job" in row.detail:
        return f"/jobs/{row.detail['job']}/"
    if row.reservation_id is not None:
        return f"/reservations/{row.reservation_id}/"
    return "/notices/"


class _Others:
    """Names of the other people: displacing holders by Reservation, others by User."""

    def __init__(
        self,
        takers: Mapping[int, Reservation],
        people: Mapping[int, User],
        reader: Reader,
    ) -> None:
        self.takers = takers
        self.people = people
        self.reader = reader

    @classmethod
    def of(cls, rows: list[Notice], user: User) -> "_Others":
        """Read the people that ``detail["by"]`` and ``detail["person"]`` name."""
        by = {row.detail["by"] for row in rows if "by" in row.detail}
        persons = {row.detail["person"] for row in rows if "person" in row.detail}
        takers = Reservation.objects.select_related("user", "membership__account")
        return cls(
            takers.in_bulk(by) if by else {},
            User.objects.in_bulk(persons) if persons else {},
            Reader.of(user, site_policy()),
        )

    def name(self, row: Notice) -> str:
        """Return the other person's name if the reader may see it, or ""."""
        taker = self.takers.get(row.detail.get("by", 0))
        if taker is not None:
            account = taker.membership.account
            named = self.reader.sees_name(taker.user_id, account.pk)
            return f"{taker.user} ({account})" if named else str(account)
        person = self.people.get(row.detail.get("person", 0))
        # A person who offers, shares or takes part has shown their name to this reader.
        return str(person) if person is not None else ""

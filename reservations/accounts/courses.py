"""End courses and guests by date: warn, wind down, archive.

A course is an Account with ``ends_at``. Every function may run twice and concurrently.
"""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from reservations.accounts import offboarding
from reservations.accounts.tree import service as accounts
from reservations.accounts.tree.tree_edits import Edit, Edited, TreeStale
from reservations.models import (
    Account,
    Membership,
    Notice,
    Series,
    TreeChange,
    User,
    WaitingRequest,
)
from reservations.notifications.service import notify
from reservations.notifications.text.membership_text import WARN_DAYS, warn_days
from reservations.rules.policy import Policy
from reservations.store.account_tree import subtree
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import sentence
from telemetry.rules.isolated_steps import isolated

MOST_TOLD = 100
"""People whom one tick notifies about one course."""
MOST_ENDED = 20
SOON = timedelta(days=max(WARN_DAYS))
log = logging.getLogger(__name__)


def end_due(at: datetime, policy: Policy) -> dict[str, int]:
    """Warn of near ends, then end due courses and guests. Return both counts."""
    if not _has_work(at):
        return dict.fromkeys(("endings_told", "courses_ended", "guests_ended"), 0)
    return {
        "endings_told": _safely(_notify_members, at, policy)
        + _safely(_notify_guests, at, policy),
        "courses_ended": _safely(_end_courses, at, policy),
        "guests_ended": _safely(_end_guests, at, policy),
    }


def _has_work(at: datetime) -> bool:
    """Say in one query whether any step has work: usually none has."""
    queries: list[QuerySet[Any, Any]] = [
        Account.objects.filter(archived_at=None, ends_at__lte=at + SOON),
        Membership.objects.filter(active=True, expires_at__lte=at + SOON),
        _memberships_with_stray_gpus(),
        _ended_memberships(),
    ]
    first, *others = (rows.order_by().values_list("pk") for rows in queries)
    return bool(first.union(*others, all=True)[:1])


def _safely(
    step: Callable[[datetime, Policy], int], at: datetime, policy: Policy
) -> int:
    with isolated(log, "%s failed", step.__name__):
        return step(at, policy)
    return 0


# --- notices ----------------------------------------------------------------------


def _notify_members(at: datetime, policy: Policy) -> int:
    """Notify members 7 days and 1 day before their course ends."""
    told = 0
    soon = Account.objects.filter(
        archived_at=None, ends_at__gt=at, ends_at__lte=at + SOON
    )
    for course in soon.order_by("ends_at", "pk")[:MOST_ENDED]:
        assert course.ends_at is not None
        days = warn_days(course.ends_at, at)
        key = f"course:{course.pk}:{course.ends_at.isoformat()}:{days}"
        people = User.objects.filter(
            pk__in=Membership.objects.filter(
                account_id__in=subtree(course.pk), active=True
            ).values("user_id")
        )
        detail = {
            "what": "member",
            "account": str(course),
            "ends_at": course.ends_at.isoformat(),
        }
        told += _notify_of_end(_not_yet_notified(people, key), key, detail, at)
    return told


def _notify_guests(at: datetime, policy: Policy) -> int:
    """Notify a guest and the guest's sponsor before the guest's time ends."""
    soon = Membership.objects.filter(
        active=True, expires_at__gt=at, expires_at__lte=at + SOON
    ).select_related("user", "sponsor", "account")
    told = 0
    for guest in soon.order_by("expires_at", "pk")[:MOST_TOLD]:
        assert guest.expires_at is not None
        days = warn_days(guest.expires_at, at)
        key = f"guest:{guest.pk}:{guest.expires_at.isoformat()}:{days}"
        same = {"account": str(guest.account), "ends_at": guest.expires_at.isoformat()}
        own = User.objects.filter(pk=guest.user_id)
        told += _notify_of_end(
            _not_yet_notified(own, key), key, same | {"what": "member"}, at
        )
        if guest.sponsor_id is not None:
            sponsor = User.objects.filter(pk=guest.sponsor_id)
            about = same | {"what": "guest", "person": guest.user_id}
            told += _notify_of_end(_not_yet_notified(sponsor, key), key, about, at)
    return told


def _not_yet_notified(people: QuerySet[User], key: str) -> QuerySet[User]:
    before = Notice.objects.filter(
        user=OuterRef("pk"), kind=Notice.Kind.COURSE_ENDING, key=key
    )
    return people.filter(~Exists(before), is_active=True).order_by("pk")[:MOST_TOLD]


def _notify_of_end(
    people: QuerySet[User], key: str, detail: Mapping[str, object], at: datetime
) -> int:
    chosen = list(people)
    if not chosen:
        return 0
    with transaction.atomic(durable=True):
        return sum(
            notify(
                user=user,
                kind=Notice.Kind.COURSE_ENDING,
                detail=detail,
                now=at,
                key=key,
            )
            is not None
            for user in chosen
        )


# --- ends ---------------------------------------------------------------------------


def _end_courses(at: datetime, policy: Policy) -> int:
    """Wind a course down. Archive it once its members hold nothing any more."""
    ended = 0
    due = Account.objects.filter(archived_at=None, ends_at__lte=at)
    for course in due.order_by("ends_at", "pk")[:MOST_ENDED]:
        inside = Membership.objects.filter(account_id__in=subtree(course.pk))
        reason = sentence("{name} has ended", name=course.name)
        assert course.ends_at is not None
        # The time of its end, because the tick may be late.
        if offboarding.wind_down(
            inside, at=course.ends_at, policy=policy, reason=reason
        ):
            edit = Edit("account", course.pk, course.version, {"archived": True})
            ended += _change([edit], TreeChange.Kind.ARCHIVE, reason, at)
    # A booking may have been made in the moment in which the account was archived.
    stray = _memberships_with_stray_gpus()
    if stray.exists():
        offboarding.wind_down(
            stray, at=at, policy=policy, reason=sentence("the group has ended")
        )
    # Former members lose their waiting requests and series, and keep their vouchers.
    left = _ended_memberships()
    if left.exists():
        offboarding.end_wishes(left, at=at, reason=sentence("left it"), owed=False)
    return ended


def _memberships_with_stray_gpus() -> QuerySet[Membership]:
    """Return the Memberships that hold Gpus through an archived Account."""
    return Membership.objects.filter(account__archived_at__isnull=False).filter(
        reservations__state__in=offboarding.LIVE
    )


def _ended_memberships() -> QuerySet[Membership]:
    """Return ended Memberships that still have waiting requests or series."""
    return Membership.objects.filter(active=False).filter(
        Q(waiting__state=WaitingRequest.State.WAITING)
        | Q(series__state=Series.State.RUNNING)
    )


def _end_guests(at: datetime, policy: Policy) -> int:
    """End the guests of an Account whose time is over, unless they are members."""
    due = Membership.objects.filter(active=True, expires_at__lte=at).order_by(
        "expires_at", "pk"
    )
    gone: list[Edit] = []
    for member in due[:MOST_ENDED]:
        own = Membership.objects.filter(pk=member.pk)
        over = member.expires_at or at
        if offboarding.wind_down(
            own, at=over, policy=policy, reason=sentence("the membership has ended")
        ):
            offboarding.end_sharing(
                user_pk=member.user_id, account_pk=member.account_id, at=over
            )
            gone.append(Edit("member", member.pk, member.version, {"active": False}))
    if not gone:
        return 0
    return _change(
        gone, TreeChange.Kind.EXPIRY, sentence("the membership has ended"), at
    )


def _change(edits: list[Edit], kind: str, reason: str, at: datetime) -> int:
    """Store it as a change that the operator can undo. 0: another worker was first."""

    def still_due(done: Edited) -> None:
        if not done.changed:
            raise TreeStale(what=reason)

    try:
        accounts.save(
            edits=edits, actor=None, reason=reason, now=at, kind=kind, check=still_due
        )
    except CodedError:
        log.info("%s: changed meanwhile, the next tick looks again", reason)
        return 0
    return len(edits)

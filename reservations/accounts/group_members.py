"""The members of a group: heads add and remove them, and create links to join.

A head changes neither quotas nor rights. A group without its own quota has the sum of
its members' quotas. A new member would raise this sum, so the group keeps the old one.
"""

import secrets
from collections.abc import Callable
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F

from reservations.accounts.group_quota import sum_of_members
from reservations.accounts.tree import service as accounts
from reservations.accounts.tree.tree_edits import Edit, Edited, TreeStale
from reservations.models import (
    Account,
    ApiToken,
    GroupLink,
    Membership,
    SitePolicy,
    TreeChange,
    User,
)
from reservations.rules.errors import NotAllowed, NotFound
from reservations.store.account_tree import headed_accounts
from reservations.store.audit_log import audit_act
from telemetry.protocol.sentences import sentence

LINK_DAYS = (1, 7, 14, 30)
MOST_JOINS = 200
JOIN_TRIES = 3
"""Attempts of one join, in case the group is changed by another request meanwhile."""
LINKS_AT_ONCE = 10
"""Working links of one group. A larger number would be forgotten, not used."""


def may_change_members(
    user: User, account: Account, headed: frozenset[int] | None = None
) -> bool:
    """Return whether a User may add and remove members of an Account.

    The operator always may. A head may if the site's policy allows it.

    Args:
        headed: the Accounts that the User is head of. None: they are read.
    """
    if account.archived_at is not None:
        return False
    if user.is_operator:
        return True
    return (
        user.is_active
        and SitePolicy.current().heads_add_members
        and account.pk in (headed_accounts(user) if headed is None else headed)
    )


def _account(user: User, account_id: int) -> Account:
    account = Account.objects.filter(pk=account_id, archived_at=None).first()
    if account is None or not may_change_members(user, account):
        raise NotAllowed(act=sentence("change the members of this group"))
    return account


def _quota_kept(account: Account) -> list[Edit]:
    """Return the edit that keeps a group's quota as it is. None if it has its own."""
    if account.quota_gpu_seconds is not None:
        return []
    total = sum_of_members(account)
    fields = {"quota_gpu_seconds": total}
    return [Edit("account", account.pk, account.version, fields)]


def add(*, user: User, account_id: int, username: str, now: datetime) -> TreeChange:
    """Add a person who has an account at the portal to a group.

    Raises:
        NotAllowed: not the User's group, or the policy does not allow it.
        NotFound: no User has this name.
        EditsRefused: they are a member already.
    """
    account = _account(user, account_id)
    person = User.objects.filter(
        username=username.strip(), is_active=True, erased_at=None
    ).first()
    if person is None:
        raise NotFound(
            what=sentence(
                "person with the user name “{username}”",
                username=username.strip()[:150],
            )
        )
    edits = [*_quota_kept(account), _joins(account, person)]
    return accounts.save(
        edits=edits,
        actor=user,
        reason=sentence("member added by the group head"),
        now=now,
    )


def _joins(account: Account, person: User) -> Edit:
    fields = {"user": person.username, "account": account.name}
    return Edit("member", None, None, fields)


def remove(
    *, user: User, account_id: int, membership_id: int, now: datetime
) -> TreeChange:
    """Remove a member from a group. Heads are removed by the operator.

    Raises:
        NotAllowed: not the User's group, or the member is a head.
        NotFound: no member of this very group.
        EditsRefused: they still hold bookings, or answer for a guest.
    """
    account = _account(user, account_id)
    member = Membership.objects.filter(
        pk=membership_id, account=account, active=True
    ).first()
    if member is None:
        raise NotFound(what=sentence("such member of {account}", account=account))
    if member.is_head and not user.is_operator:
        raise NotAllowed(act=sentence("remove a group head: ask the lab admin"))
    edit = Edit("member", member.pk, member.version, {"active": False})
    return accounts.save(
        edits=[edit],
        actor=user,
        reason=sentence("member removed by the group head"),
        now=now,
    )


# --- links ------------------------------------------------------------------------


@transaction.atomic(durable=True)
def make_link(
    *, user: User, account_id: int, days: int, most_joins: int, now: datetime
) -> tuple[GroupLink, str]:
    """Create a link to join a group. Return it with its text, which is shown once.

    Raises:
        NotAllowed: not the User's group, or too many links work already.
    """
    account = _account(user, account_id)
    working = [link for link in account.links.all() if link.works(now)]
    if len(working) >= LINKS_AT_ONCE:
        raise NotAllowed(
            act=sentence(
                "have more than {most} links: revoke one first",
                most=LINKS_AT_ONCE,
            )
        )
    text = secrets.token_urlsafe(32)
    link = GroupLink.objects.create(
        account=account,
        link_hash=ApiToken.hash_token(text),
        made_by=user,
        created_at=now,
        expires_at=now + timedelta(days=days),
        most_joins=most_joins,
    )
    audit_act(
        verb="group.link-made",
        subject=f"account:{account.pk}",
        actor=user,
        now=now,
        link=link.pk,
        days=days,
        most_joins=most_joins,
    )
    return link, text


@transaction.atomic(durable=True)
def revoke_link(*, user: User, account_id: int, link_id: int, now: datetime) -> bool:
    """End a link. False: it had ended already.

    Raises:
        NotAllowed: not the User's group.
    """
    account = _account(user, account_id)
    rows = GroupLink.objects.filter(pk=link_id, account=account, revoked_at=None)
    if not rows.update(revoked_at=now):
        return False
    audit_act(
        verb="group.link-revoked",
        subject=f"account:{account.pk}",
        actor=user,
        now=now,
        link=link_id,
    )
    return True


def link_of(text: str, *, now: datetime) -> GroupLink:
    """Return the link with a text.

    It works as long as the person who made it may still add members.

    Raises:
        NotFound: unknown, expired, revoked or used up.
    """
    link = (
        GroupLink.objects.select_related("account", "made_by")
        .filter(link_hash=ApiToken.hash_token(text))
        .first()
    )
    if (
        link is None
        or not link.works(now)
        or link.made_by is None
        or not may_change_members(link.made_by, link.account)
    ):
        raise NotFound(what=sentence("such link, or it has expired"))
    return link


def join(*, text: str, user: User, now: datetime) -> Account:
    """Make a User a member of the group that a link is for.

    A link is for people who were never in the group. It does not readmit removed
    members or guests whose time is over. A head adds those by name.

    Raises:
        NotFound: the link does not work.
        NotAllowed: the User was a member before.
        EditsRefused: the User is a member already.
    """
    link = link_of(text, now=now)
    account = link.account
    if account.memberships.filter(user=user, active=False).exists():
        raise NotAllowed(
            act=sentence(
                "join {account} again by a link: ask its head to add you by name",
                account=account,
            )
        )

    def claim(_done: Edited) -> None:
        """Count the join in the transaction that makes it."""
        rows = GroupLink.objects.filter(
            pk=link.pk,
            revoked_at=None,
            expires_at__gt=now,
            joins__lt=F("most_joins"),
        )
        if not rows.update(joins=F("joins") + 1):
            raise NotFound(what=sentence("such link, or it has expired"))
        audit_act(
            verb="group.joined",
            subject=f"account:{account.pk}",
            actor=user,
            now=now,
            link=link.pk,
        )

    reason = sentence("joined by a link of {who}", who=link.made_by)
    admit(account=account, user=user, reason=reason, now=now, check=claim)
    return account


def admit(
    *,
    account: Account,
    user: User,
    reason: str,
    now: datetime,
    check: Callable[[Edited], None] | None = None,
) -> None:
    """Make a User a member of a group. Nobody's permission is checked.

    Args:
        check: runs in the transaction, and may refuse.

    Raises:
        EditsRefused: the User is a member already.
        TreeStale: the group was changed by others at every attempt.
    """
    for left in reversed(range(JOIN_TRIES)):
        # A class joins all at once, and the first who joins changes the group's quota.
        account.refresh_from_db()
        try:
            accounts.save(
                edits=[*_quota_kept(account), _joins(account, user)],
                actor=user,
                reason=reason,
                now=now,
                check=check,
            )
            break
        except TreeStale:
            if not left:
                raise

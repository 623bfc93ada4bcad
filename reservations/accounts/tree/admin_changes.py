"""Changes made in Django's admin, recorded like those of the tree's own pages."""

from datetime import datetime

from django.db import transaction

from reservations.accounts.tree.service import lock_tree, row_values
from reservations.accounts.tree.tree_rows import AccountInfo, MemberInfo
from reservations.models import Account, Membership, TreeChange, TreeChangeRow, User

Row = AccountInfo | MemberInfo


def info_of(row: Account | Membership) -> Row:
    """Return the value of a stored row for the tree."""
    if isinstance(row, Account):
        return AccountInfo(
            pk=row.pk,
            name=row.name,
            title=row.title,
            parent_pk=row.parent_id,
            shares=row.shares,
            quota_gpu_seconds=row.quota_gpu_seconds,
            ends_at=row.ends_at,
            archived_at=row.archived_at,
            version=row.version,
        )
    return MemberInfo(
        pk=row.pk,
        user_pk=row.user_id,
        account_pk=row.account_id,
        shares=row.shares,
        quota_gpu_seconds=row.quota_gpu_seconds,
        is_head=row.is_head,
        active=row.active,
        expires_at=row.expires_at,
        sponsor_pk=row.sponsor_id,
        version=row.version,
    )


def next_version(row: Account | Membership) -> Row | None:
    """Give a row that is about to be saved its next version. Return it as stored now.

    Call it in a transaction. The tree is locked until that ends.
    """
    lock_tree()
    stored = type(row)._default_manager.filter(pk=row.pk).first() if row.pk else None
    if not isinstance(stored, Account | Membership):
        return None
    row.version = stored.version + 1
    return info_of(stored)


def record(
    *,
    before: Row | None,
    row: Account | Membership,
    actor: User | None,
    reason: str,
    now: datetime,
) -> TreeChange:
    """Record a saved row as a separate change."""
    after = info_of(row)
    table = "account" if isinstance(row, Account) else "member"
    with transaction.atomic():
        change = TreeChange.objects.create(
            at=now, actor=actor, kind=TreeChange.Kind.DESK, reason=reason[:400]
        )
        TreeChangeRow.objects.create(
            change=change,
            table=table,
            row_pk=after.pk,
            before=row_values(before),
            after=row_values(after),
            version_after=after.version,
        )
    return change

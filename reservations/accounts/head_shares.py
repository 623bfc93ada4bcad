"""The head of a group may change the shares of its members, and nothing else."""

from collections.abc import Mapping
from datetime import datetime

from reservations.accounts.tree import service as accounts
from reservations.accounts.tree.tree_edits import Edit
from reservations.models import Account, Membership, TreeChange, User
from reservations.rules.errors import NotAllowed, NotFound
from reservations.store.account_tree import headed_accounts
from telemetry.protocol.sentences import sentence


def headed_account(user: User, account_id: int) -> Account:
    """Return an Account that a User heads, directly or through an ancestor.

    Raises:
        NotAllowed: no such Account, or the User does not head it.
    """
    account = Account.objects.filter(
        pk__in=headed_accounts(user), pk=account_id, archived_at=None
    ).first()
    if account is None:
        raise NotAllowed(act=sentence("manage this group"))
    return account


def share_edits(
    *, user: User, account_id: int, shares: Mapping[int, tuple[int, int]]
) -> list[Edit]:
    """Return edits of members' shares, after checking that the User may make them.

    Args:
        shares: by Membership: the new shares, and the version that was shown.

    Raises:
        NotAllowed: the User does not head the group.
        NotFound: the Membership is not in this group.
    """
    account = headed_account(user, account_id)
    own = set(
        Membership.objects.filter(
            account=account, active=True, pk__in=list(shares)
        ).values_list("pk", flat=True)
    )
    strangers = set(shares) - own
    if strangers:
        raise NotFound(
            what=sentence(
                "member {member} of {account}",
                member=min(strangers),
                account=account,
            )
        )
    return [
        Edit("member", pk, version, {"shares": new})
        for pk, (new, version) in sorted(shares.items())
    ]


def set_shares(
    *,
    user: User,
    account_id: int,
    shares: Mapping[int, tuple[int, int]],
    now: datetime,
) -> TreeChange:
    """Change members' shares, all of them or none.

    Raises:
        NotAllowed, NotFound: see ``share_edits``.
        TreeStale, EditsRefused.
    """
    edits = share_edits(user=user, account_id=account_id, shares=shares)
    return accounts.save(
        edits=edits,
        actor=user,
        reason=sentence("shares inside the group, by its head"),
        now=now,
    )

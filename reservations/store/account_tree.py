"""The tree of Accounts: ancestors and descendants."""

from collections.abc import Collection, Iterator, Mapping

from reservations.models import Account, Membership, User


def parent_pks() -> dict[int, int | None]:
    """Return the parent of every Account, in one query. None: a root."""
    return dict(Account.objects.order_by().values_list("pk", "parent_id"))


def path_up(pk: int, parents: Mapping[int, int | None]) -> Iterator[int]:
    """Yield an Account and every one above it, up to the root."""
    above: int | None = pk
    while above is not None:
        yield above
        above = parents.get(above)


def accounts_below(account_pks: Collection[int]) -> dict[int, frozenset[int]]:
    """Return, for each Account, itself and every one below it. No Accounts: no
    query.
    """
    if not account_pks:
        return {}
    found: dict[int, set[int]] = {pk: {pk} for pk in account_pks}
    parents = parent_pks()
    for pk in parents:
        for above in path_up(pk, parents):
            if above in found:
                found[above].add(pk)
    return {pk: frozenset(inside) for pk, inside in found.items()}


def subtree(account_pk: int) -> frozenset[int]:
    """Return an Account and every one below it, in one query."""
    return accounts_below([account_pk])[account_pk]


def members_below(account_pks: Collection[int]) -> dict[int, frozenset[int]]:
    """Return, for each Account, the Memberships in it and below it."""
    below = accounts_below(account_pks)
    rows = list(Membership.objects.order_by().values_list("pk", "account_id"))
    return {
        pk: frozenset(member for member, account in rows if account in inside)
        for pk, inside in below.items()
    }


def headed_accounts(user: User) -> frozenset[int]:
    """Return the Accounts that a User heads, and every one below them."""
    headed = Membership.objects.filter(user=user, is_head=True, active=True).order_by()
    below = accounts_below(set(headed.values_list("account_id", flat=True)))
    return frozenset[int]().union(*below.values())


def booked_under(user_pk: int) -> frozenset[int]:
    """Return the Accounts under which a User books, and every one above them."""
    parents = parent_pks()
    own = Membership.objects.filter(user_id=user_pk, active=True).order_by()
    return frozenset(
        above
        for account in own.values_list("account_id", flat=True)
        for above in path_up(account, parents)
    )

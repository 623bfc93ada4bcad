"""Who surely stands below the owner of the flex in the way? In integers.

See docs/design/fair-booking.md#rule-2.

A look at the waitlist tries thousands of sets of Gpus, and nearly all of them fail
because who asks does not stand above an owner. Fair Tree compares two people at the
first Level at which their paths part, and there the usage of the parent cancels:

    LF(A) < LF(B)  <=>  shares(A) * usage(B) < shares(B) * usage(A)

So two products say no, with the sums as they would be after the displacement. Where
the two tie, or shares are ``parent``, nothing is said: ``displacement.check_above``
judges. Cost: the length of the paths.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reservations.rules.calendar import FlexInfo
    from reservations.rules.fairness.preemption import FairTree

Node = tuple[bool, int]
"""Whether it is a Membership, and its key."""


class Scales:
    """The tree's sums by node, and each Membership's way down to it."""

    def __init__(self, tree: FairTree) -> None:
        self._accounts = {account.pk: account for account in tree.accounts}
        self._unit = tree.unit
        self._shares: dict[Node, int | None] = {}
        self._usage: dict[Node, int] = {}
        self._paths: dict[int, tuple[Node, ...]] = {}
        for member in tree.members:
            node: Node = True, member.pk
            self._shares[node] = member.shares
            self._paths[member.pk] = (*self._above(member.account_pk), node)
            for step in self._paths[member.pk]:
                self._usage[step] = self._usage.get(step, 0) + member.usage

    def _above(self, account_pk: int) -> list[Node]:
        """Return the Accounts that exist for the tree, below the root, from the top."""
        found: list[Node] = []
        account = self._accounts[account_pk]
        while account.parent_pk is not None:
            if account.shares is not None:
                self._shares[False, account.pk] = account.shares
                found.append((False, account.pk))
            account = self._accounts[account.parent_pk]
        return found[::-1]

    def below(
        self, member_pk: int, more_gpu_seconds: int, flex: Iterable[FlexInfo]
    ) -> bool:
        """Say whether a Membership, holding so much more, is surely not above some
        owner of this flex once all of it is gone."""
        if member_pk not in self._paths:
            return False
        extra = {member_pk: more_gpu_seconds}
        for one in flex:
            if one.membership_pk not in self._paths:
                return False
            owner = one.membership_pk
            extra[owner] = extra.get(owner, 0) - one.cost_gpu_seconds
        change: dict[Node, int] = {}
        for pk, gpu_seconds in extra.items():
            usage = self._usage[True, pk]
            moved = max(usage + gpu_seconds * self._unit, 0) - usage
            for step in self._paths[pk]:
                change[step] = change.get(step, 0) + moved
        own = self._paths[member_pk]
        return any(
            self._under(own, self._paths[pk], change) for pk in extra if pk != member_pk
        )

    def _under(
        self, own: tuple[Node, ...], theirs: tuple[Node, ...], change: dict[Node, int]
    ) -> bool:
        one, two = next(
            (a, b) for a, b in zip(own, theirs, strict=False) if a != b
        )  # fmt: skip
        mine, their = self._shares[one], self._shares[two]
        if mine is None or their is None:
            return False
        return mine * (self._usage[two] + change.get(two, 0)) < their * (
            self._usage[one] + change.get(one, 0)
        )

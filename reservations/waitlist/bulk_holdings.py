"""Holdings and quotas of many people, read in one query each."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import cached_property

from reservations.models import Account, Membership
from reservations.rules.fairness.early_returns import EarlyReturns
from reservations.rules.fairness.no_shows import Strike
from reservations.rules.fairness.quota import QuotaInfo, Spend
from reservations.rules.policy import Policy
from reservations.rules.request import Holding
from reservations.store.booking_facts import (
    holdings_of,
    quotas_of,
    returns_of,
    spends_of,
    strikes_of,
)
from reservations.store.booking_snapshot import WEEK, quota_infos


class BulkHoldings:
    """Facts about some Memberships and their Users, read on first use."""

    def __init__(
        self,
        memberships: Sequence[Membership],
        start: datetime,
        end: datetime,
        policy: Policy,
        pools: Collection[int],
    ) -> None:
        """Prepare to read.

        Args:
            start, end: the time that matters.
            pools: those that have quotas.
        """
        self._memberships = tuple(memberships)
        self._members = {one.pk for one in memberships}
        self._users = {one.user_id for one in memberships}
        self._start, self._end = start, end
        self._policy, self._pools = policy, pools
        self._quotas: dict[int, tuple[QuotaInfo, ...]] = {}

    @cached_property
    def holdings(self) -> dict[int, tuple[Holding, ...]]:
        """Return each User's holdings, over all Memberships."""
        return holdings_of(self._users)

    @cached_property
    def returns(self) -> dict[int, EarlyReturns]:
        """Return the returns beyond the free ones, by Membership."""
        return returns_of(self._memberships, now=self._start, policy=self._policy)

    @cached_property
    def strikes(self) -> dict[int, Strike | None]:
        """Return the strike in force for each User with recent no-shows."""
        return strikes_of(self._users, now=self._start, policy=self._policy)

    def path(self, account_pk: int) -> list[Account]:
        """Return the Accounts from one up to the root."""
        path = [self._accounts[account_pk]]
        while path[-1].parent_id is not None:
            path.append(self._accounts[path[-1].parent_id])
        return path

    @cached_property
    def _accounts(self) -> dict[int, Account]:
        return Account.objects.in_bulk()

    def quotas(
        self, membership: Membership, path: Sequence[Account]
    ) -> tuple[QuotaInfo, ...]:
        """Return the quotas that apply to one of them, as ``quota_infos`` does."""
        if membership.pk not in self._quotas:
            self._quotas[membership.pk] = self._read(membership, path)
        return self._quotas[membership.pk]

    def _read(
        self, membership: Membership, path: Sequence[Account]
    ) -> tuple[QuotaInfo, ...]:
        policy, quota = self._policy, membership.quota_gpu_seconds
        limited = any(one.quota_gpu_seconds is not None for one in path)
        most = policy.person_quota_gpu_seconds
        if limited or self._pools or self._together[membership.user_id] > most:
            return quota_infos(
                membership,
                path,
                self._start,
                self._end,
                policy=policy,
                pools=self._pools,
            )
        return (
            QuotaInfo(
                account=str(membership.account),
                quota_gpu_seconds=policy.quota_gpu_seconds if quota is None else quota,
                spends=tuple(self._spends[membership.pk]),
            ),
        )

    @cached_property
    def _together(self) -> dict[int, int]:
        """Return the sum of the quotas of each User's Memberships."""
        site = self._policy.quota_gpu_seconds
        return {
            user: sum(site if quota is None else quota for quota in own.values())
            for user, own in quotas_of(self._users).items()
        }

    @cached_property
    def _spends(self) -> dict[int, list[Spend]]:
        found: dict[int, list[Spend]] = defaultdict(list)
        rows = spends_of(self._members, self._start - WEEK, self._end + WEEK)
        for member, _member, spend in rows:
            found[member].append(spend)
        return found

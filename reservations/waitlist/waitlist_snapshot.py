"""The waitlist as values: requests, their order, and the facts that decide them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from django.conf import settings
from django.utils import timezone

from reservations.models import Closure, NoticeSettings, WaitingRequest
from reservations.notifications.delivery_rules import quiet_until
from reservations.rules.calendar import Calendar, CalendarGpu, PlannedStart, SlotWish
from reservations.rules.engine_names import UNIX_USER
from reservations.rules.fairness.fair_tree import FairRank
from reservations.rules.fairness.preemption import Displacer, FairTree
from reservations.rules.overstay_terms import notice_end
from reservations.rules.policy import Policy
from reservations.rules.request import Snapshot
from reservations.rules.window import Window, unix
from reservations.store.booking_snapshot import PATH_UP, calendar_of, right_to_book
from reservations.store.foreign_use import SOON_SECONDS, foreign_gpus
from reservations.store.gpu_rows import barred_pools, calendar_gpus
from reservations.store.usage import fair_tree, usage_by_membership
from reservations.waitlist.bulk_holdings import BulkHoldings
from reservations.waitlist.openings import WaitingRequestInfo
from reservations.waitlist.rules import in_order

MOST_LOOKED = 200
"""Requests that one run considers, the oldest first."""


def wish_of_request(row: WaitingRequest) -> SlotWish:
    """Return the wish of a request."""
    return SlotWish(
        count=row.count,
        duration_seconds=row.duration_seconds,
        min_memory_bytes=row.min_memory_bytes,
        gpu_class=row.gpu_class or None,
    )


def plan_of(row: WaitingRequest) -> PlannedStart | None:
    """Return the planned start of a waiting request."""
    if not row.planned or row.expected_start is None or row.expected_end is None:
        return None
    window = Window(row.expected_start, row.expected_end)
    return PlannedStart(row.pk, row.user_id, frozenset(row.expected_gpu_ids), window)


def waiting_request_info(
    row: WaitingRequest, *, now: datetime, quiet: NoticeSettings | None
) -> WaitingRequestInfo:
    """Return a row as a value. ``quiet``: when its person is in quiet hours."""
    until = quiet and quiet_until(
        now,
        begin=quiet.quiet_from,
        end=quiet.quiet_until,
        zone=timezone.get_default_timezone(),
    )
    return WaitingRequestInfo(
        pk=row.pk,
        member_pk=row.membership_id,
        user_pk=row.user_id,
        wish=wish_of_request(row),
        earliest=row.earliest,
        latest=row.latest,
        asked_at=row.created_at,
        consents=row.any_notice or row.has_job,
        quiet_until=until or None,
        takes=row.may_take,
        plan=plan_of(row),
    )


@dataclass
class WaitlistSnapshot:
    """The facts for one run of the waitlist, each read once."""

    now: datetime
    policy: Policy
    rows: dict[int, WaitingRequest]
    queue: tuple[WaitingRequestInfo, ...]
    """In the order of service."""
    ranks: dict[int, FairRank]
    tree: FairTree | None
    until: datetime
    gpus: list[CalendarGpu]
    people: BulkHoldings
    refused_nodes: frozenset[tuple[int, str]] = frozenset()
    """Requests to which Slurm refused a node in this run, and the node."""
    _calendars: dict[frozenset[int], Calendar] = field(default_factory=dict)
    _facts: dict[int, Snapshot] = field(default_factory=dict)
    _taught: frozenset[int] | None = None
    _used: dict[int, int] | None = None

    def facts(self, one: WaitingRequestInfo) -> Snapshot:
        """Return the facts that decide a request, on the whole calendar ahead."""
        if one.pk not in self._facts:
            self._facts[one.pk] = self._read(one)
        return self._facts[one.pk]

    def _read(self, one: WaitingRequestInfo) -> Snapshot:
        membership = self.rows[one.pk].membership
        path = self.people.path(membership.account_id)
        asking = frozenset(account.pk for account in path)
        calendar = self._calendar(asking).seen_by(one.user_pk)
        barred = barred_pools(self.gpus, asking)
        if barred or self.has_engine:
            given = self._given_out(self.rows[one.pk])
            open_gpus = [gpu for gpu in given if gpu.pool_pk not in barred]
            foreign = calendar.foreign
            calendar = Calendar(
                open_gpus, calendar.busy(), calendar.plans, calendar.gaps
            )
            calendar.foreign = foreign
        return Snapshot(
            policy=self.policy,
            calendar=calendar,
            own=self.people.holdings.get(one.user_pk, ()),
            quotas=self.people.quotas(membership, path),
            barred=barred,
            membership_pk=one.member_pk,
            tree=self.tree,
            strike=self.people.strikes.get(one.user_pk),
            returns=self.people.returns.get(one.member_pk),
            right=right_to_book(membership, path),
        )

    @cached_property
    def has_engine(self) -> bool:
        """Whether another engine gives out some of the Gpus."""
        return any(gpu.engine for gpu in self.gpus)

    def _given_out(self, row: WaitingRequest) -> Iterable[CalendarGpu]:
        """Return the Gpus without those that Slurm does not give to a request.

        Without an agent the portal starts no jobs there.
        """
        serves = UNIX_USER.fullmatch(row.user.unix_user) and (
            settings.SLURM_AGENT or not row.has_job
        )
        return (
            gpu
            for gpu in self.gpus
            if not gpu.engine
            or (serves and (row.pk, gpu.node) not in self.refused_nodes)
        )

    def _calendar(self, asking: frozenset[int]) -> Calendar:
        """Return the calendar of a requesting User, with their teaching slots."""
        if self._taught is None:
            standing = Closure.objects.standing(self.now, self.until)
            accounts = standing.exclude(account=None).order_by()
            self._taught = frozenset(accounts.values_list("account_id", flat=True))
        admitted = asking & self._taught
        if admitted not in self._calendars:
            # No one is user 0, so everybody's unfrozen flex and plans are included.
            taker = Displacer(0, self.now, self.policy.freeze_seconds)
            self._calendars[admitted] = calendar_of(
                self.gpus,
                self.now,
                self.until,
                taker=taker,
                asking=admitted,
                leave_at=notice_end(self.now, self.policy),
                searching=True,
            )
            self._calendars[admitted].foreign = self._foreign()
        return self._calendars[admitted]

    def _foreign(self) -> dict[int, int]:
        """Return until when (Unix seconds) a foreign process is expected on Gpus."""
        if self._used is None:
            self._used = dict.fromkeys(foreign_gpus(), unix(self.now) + SOON_SECONDS)
        return self._used


def read_waitlist(
    now: datetime,
    policy: Policy,
    refused_nodes: frozenset[tuple[int, str]] = frozenset(),
) -> WaitlistSnapshot:
    """Read the waitlist and the facts that decide it, in few queries.

    Args:
        refused_nodes: as of the snapshot.
    """
    chosen = (
        WaitingRequest.objects.waiting()
        .filter(membership__active=True, user__is_active=True)
        .select_related("user", "membership__user", f"membership__{PATH_UP}")
        .order_by("created_at", "pk")
    )
    rows = list(chosen[:MOST_LOOKED])
    quiet = _quiet_hours({row.user_id for row in rows})
    waiting = [
        waiting_request_info(row, now=now, quiet=quiet.get(row.user_id)) for row in rows
    ]
    tree, ranks = _ranked(waiting, now, policy)
    longest = timedelta(seconds=policy.longest_seconds)
    horizon = now + timedelta(seconds=policy.firm_horizon_seconds)
    until = max([horizon, *(one.latest for one in waiting)]) + longest
    gpus = calendar_gpus()
    limited = frozenset(gpu.pool_pk for gpu in gpus if gpu.limited)
    people = BulkHoldings([row.membership for row in rows], now, until, policy, limited)
    return WaitlistSnapshot(
        now=now,
        policy=policy,
        rows={row.pk: row for row in rows},
        queue=in_order(waiting, ranks),
        ranks=ranks,
        tree=tree,
        until=until,
        gpus=gpus,
        people=people,
        refused_nodes=refused_nodes,
    )


def _quiet_hours(user_pks: Iterable[int]) -> dict[int, NoticeSettings]:
    rows = NoticeSettings.objects.filter(user_id__in=user_pks).exclude(quiet_from=None)
    return {row.user_id: row for row in rows}


def _ranked(
    waiting: Sequence[WaitingRequestInfo], now: datetime, policy: Policy
) -> tuple[FairTree | None, dict[int, FairRank]]:
    if not waiting:
        return None, {}
    usage = usage_by_membership(now, policy)
    # Holders of flex count even if deactivated (``booking_snapshot.with_tree``).
    tree = fair_tree(usage, now, policy, also={*usage, *(w.member_pk for w in waiting)})
    return (tree, tree.ranked().ranks) if tree is not None else (None, {})

"""The written SQL of a booking gives the results of Django's query builder."""

import random
from collections.abc import Iterator
from copy import copy
from datetime import datetime, timedelta

import pytest
from django.db import transaction
from django.db.models import F, Q, Sum

from reservations.models import (
    Account,
    Allocation,
    Closure,
    CoUser,
    EarlyReturn,
    LateReturn,
    LedgerEntry,
    Membership,
    Reservation,
    SitePolicy,
    User,
    WaitingRequest,
)
from reservations.rules.fairness.preemption import Displacer
from reservations.rules.fairness.quota import PERMILLE, Spend
from reservations.rules.lifecycle import Kind, State
from reservations.rules.overstay_terms import is_gap
from reservations.rules.policy import Policy
from reservations.rules.window import Window, unix
from reservations.store import booking_facts
from telemetry.models import Gpu
from tests.factories import (
    at,
    make_account,
    make_gpus,
    make_membership,
    make_node,
    make_reservation,
    make_user,
)

KINDS = [one for one in LedgerEntry.Kind if one != LedgerEntry.Kind.IMPORT]
"""Kinds of rows that a Reservation has."""

pytestmark = pytest.mark.django_db
NOW = at(9, day=20)
HOUR = timedelta(hours=1)
PEOPLE = 5


class World:
    """Random rows of every kind that a booking looks at, and some it must not see."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.gpus = make_gpus(3, make_node("node-a")) + make_gpus(2, make_node("b"))
        root = make_account("institute")
        self.accounts = [
            root,
            make_account("vision", parent=root, title=""),
            make_account("nlp", parent=root),
        ]
        self.users = [
            make_user(
                display_name=self.random.choice(["", "Shown"]),
                is_active=self.random.random() < 0.8,
            )
            for _ in range(PEOPLE)
        ]
        self.members = [
            make_membership(
                user,
                account,
                active=self.random.random() < 0.8,
                quota_gpu_seconds=self.random.choice([None, 0, 36_000, 10**9]),
            )
            for user in self.users
            for account in self.random.sample(self.accounts, 2)
        ]
        self.rows = [self._reservation(gpu, n) for gpu in self.gpus for n in range(14)]
        for _ in range(30):
            self._beside(self.random.choice(self.rows))
        for row in self.rows[::5]:
            self._share(row)
        for _ in range(12):
            self._waiting()
            self._closure()

    def _instant(self, low: int = -40, high: int = 60) -> datetime:
        return NOW + HOUR * self.random.randint(low, high)

    def _reservation(self, gpu: Gpu, number: int) -> Reservation:
        """Write one; those of a Gpu follow each other, so that none overlap."""
        member = self.random.choice(self.members)
        start = NOW + HOUR * 6 * (number - 6)
        hours = self.random.choice([2, 5, 6])
        kind = self.random.choice(list(Kind))
        stays_on = self.random.choice([0, 0, 1, hours])
        return make_reservation(
            member.user,
            [gpu],
            start,
            start + HOUR * hours,
            membership=member,
            kind=kind,
            state=self.random.choice([*State, State.CONFIRMED, State.ACTIVE]),
            booked_end=start + HOUR * (hours - stays_on),
            peaked=self.random.random() < 0.2,
            no_show=self.random.random() < 0.3,
            ended_at=self.random.choice([None, self._instant(-60 * 24, 40)]),
        )

    def _beside(self, row: Reservation) -> None:
        start = self._instant()
        LateReturn.objects.create(
            reservation=row,
            membership_id=row.membership_id,
            gpu=self.random.choice(self.gpus),
            start=start,
            end=start + HOUR * self.random.randint(1, 6),
            weight=self.random.randint(1, 10),
            permille=500,
            firm=self.random.random() < 0.7,
            returned_at=NOW,
        )
        EarlyReturn.objects.create(
            user_id=row.user_id,
            reservation=row,
            gpu_seconds=self.random.randint(1, 10**7),
            returned_at=self._instant(-20 * 24, 0),
        )
        LedgerEntry.objects.create(
            membership_id=row.membership_id,
            reservation=row,
            kind=self.random.choice(KINDS),
            gpu_seconds=self.random.randint(1, 10**6),
            at=self._instant(-20 * 24, 0),
        )

    def _share(self, row: Reservation) -> None:
        """Share with everybody else, among them members of the owner's Account."""
        for friend in self.users:
            if friend.pk != row.user_id:
                CoUser.objects.create(
                    reservation=row,
                    user=friend,
                    added_by_id=row.user_id,
                    removed_at=self.random.choice([None, None, NOW]),
                )

    def _waiting(self) -> None:
        member = self.random.choice(self.members)
        start = self.random.choice([None, self._instant()])
        WaitingRequest.objects.create(
            user=member.user,
            membership=member,
            count=1,
            duration_seconds=3600,
            earliest=NOW,
            latest=NOW + HOUR * 99,
            state=self.random.choice(list(WaitingRequest.State)),
            planned=start is not None and self.random.random() < 0.7,
            expected_start=start,
            expected_end=start + HOUR * 4 if start else None,
            expected_gpu_ids=[
                gpu.pk for gpu in self.random.sample(self.gpus, 2) if start
            ],
        )

    def _closure(self) -> None:
        scope = self.random.choice(list(Closure.Scope))
        start, gpu = self._instant(), self.random.choice(self.gpus)
        kind = self.random.choice(list(Closure.Kind))
        teaches = kind == Closure.Kind.TEACHING
        made = Closure.objects.create(
            kind=kind,
            scope=scope,
            start=start,
            end=start + HOUR * self.random.randint(1, 30),
            reason="100 % power",
            node=gpu.node if scope == Closure.Scope.NODE else None,
            pool=gpu.pool if scope == Closure.Scope.POOL else None,
            account=self.random.choice(self.accounts) if teaches else None,
            cancelled_at=self.random.choice([None, None, NOW]),
        )
        if scope == Closure.Scope.GPUS:
            made.gpus.set(self.random.sample(self.gpus, 2))


@pytest.fixture(scope="module", params=range(2))
def world(request, django_db_setup, django_db_blocker) -> Iterator[World]:
    """One of several random labs, made once: to write it takes half a second of CPU.

    What a test changes is undone after it.
    """
    with django_db_blocker.unblock(), transaction.atomic():
        yield World(request.param)
        transaction.set_rollback(True)


def _but(rows, pk: int | None):  # type: ignore[no-untyped-def]
    return rows if pk is None else rows.exclude(pk=pk)


def test_the_policy_is_the_row_as_it_is_now(db) -> None:
    assert booking_facts.site_policy() == SitePolicy.current().to_policy()
    row = SitePolicy.current()
    row.release_idle, row.late_return_ratio, row.gpus_at_once = True, 0.25, 7
    row.save()
    found = booking_facts.site_policy()
    assert found == row.to_policy()
    assert (found.release_idle, found.late_return_permille) == (True, 250)
    # Changed behind the model's back, without a new version.
    SitePolicy.objects.update(gpus_at_once=3)
    assert booking_facts.site_policy().gpus_at_once == 3


@pytest.mark.parametrize("ignored", [False, True])
def test_holdings_own_and_shared(world: World, ignored: bool) -> None:
    pk = world.random.choice(world.rows).pk if ignored else None
    users = [user.pk for user in world.users]
    own = _but(Reservation.objects.filter(state__in=State.live()), pk)
    shared = CoUser.objects.sharing().filter(reservation__in=own)
    wanted: dict[int, list[tuple[object, ...]]] = {}
    for user, row, is_shared in [
        *((row.user_id, row, False) for row in own),
        *((one.user_id, one.reservation, True) for one in shared),
    ]:
        known = [key for key, *_ in wanted.get(user, [])]
        if is_gap(row.start, row.booked_end) or row.pk in known:
            continue
        gpus = frozenset(row.allocations.values_list("gpu_id", flat=True))
        window = Window(row.start, min(row.end, row.booked_end))
        wanted.setdefault(user, []).append((row.pk, window, gpus, row.kind, is_shared))
    found = booking_facts.holdings_of(users, ignoring=pk)
    told = {
        user: [
            (h.reservation_pk, h.window, h.gpu_pks, h.kind.value, h.shared)
            for h in holdings
        ]
        for user, holdings in found.items()
    }
    assert {user: sorted(rows, key=str) for user, rows in told.items()} == {
        user: sorted(rows, key=str) for user, rows in wanted.items()
    }
    for rows in told.values():
        assert rows == sorted(rows, key=lambda row: (row[-1], row[0])), "own ones first"
    assert any(h.shared for rows in found.values() for h in rows)
    assert booking_facts.own_holdings(users[0]) == booking_facts.holdings_of(users).get(
        users[0], ()
    )
    assert booking_facts.holdings_of([]) == {}


def test_a_right_that_is_in_force(world: World) -> None:
    Account.objects.filter(pk=world.accounts[1].pk).update(archived_at=NOW)
    told = {one.pk: booking_facts.is_in_force(one) for one in world.members}
    assert told == {
        one.pk: one.active and one.account.archived_at is None
        for one in Membership.objects.select_related("account")
    }
    assert set(told.values()) == {True, False}
    other = copy(world.members[0])
    other.user_id = 0
    assert not booking_facts.is_in_force(other), "another person's"


def test_no_shows_of_the_time_that_matters(world: World) -> None:
    policy = Policy()
    users = [user.pk for user in world.users]
    found = booking_facts.no_shows_of(users, now=NOW, policy=policy)
    since = NOW - timedelta(days=44)
    for user in users:
        rows = Reservation.objects.filter(
            user_id=user, no_show=True, ended_at__gt=since, ended_at__lte=NOW
        )
        times = rows.order_by("ended_at").values_list("ended_at", flat=True)
        assert found.get(user, ()) == tuple(times)
    assert found
    assert booking_facts.no_shows_of([], now=NOW, policy=policy) == {}


def test_returns_that_exceed_what_is_free(world: World) -> None:
    policy = Policy()
    since = NOW - timedelta(days=14)
    found = booking_facts.returns_of(world.members, now=NOW, policy=policy)
    for one in world.members:
        returned = EarlyReturn.objects.filter(
            user_id=one.user_id, returned_at__gt=since
        ).aggregate(total=Sum("gpu_seconds"))["total"]
        used = LedgerEntry.objects.filter(
            membership__user_id=one.user_id,
            kind=LedgerEntry.Kind.CHARGE,
            at__gt=since,
        ).aggregate(total=Sum("gpu_seconds"))["total"]
        quota = one.quota_gpu_seconds
        free = (policy.quota_gpu_seconds if quota is None else quota) // 2
        if (returned or 0) <= free:
            assert one.pk not in found
            continue
        told = found[one.pk]
        assert type(told.returned_gpu_seconds) is int
        assert (told.returned_gpu_seconds, told.used_gpu_seconds) == (
            returned,
            used or 0,
        )
    assert found
    assert booking_facts.returns_of([], now=NOW, policy=policy) == {}


@pytest.mark.parametrize("ignored", [False, True])
def test_spends_of_members(world: World, ignored: bool) -> None:
    pk = world.random.choice(world.rows).pk if ignored else None
    low, high = NOW - HOUR * 20, NOW + HOUR * 20
    members = [one.pk for one in world.members[:6]]
    held = _but(
        Reservation.objects.filter(
            membership__in=members,
            start__lt=high,
            end__gt=low,
            kind=Kind.FIRM,
            state__in=State.holding(),
        ),
        pk,
    )
    late = LateReturn.objects.filter(
        membership__in=members, firm=True, start__lt=high, end__gt=low
    ).exclude(reservation_id=pk or 0)
    wanted = [
        (
            row.membership_id,
            row.membership.account_id,
            Spend(unix(row.start), unix(row.end), row.weight * row.permille),
        )
        for row in late.select_related("membership")
    ]
    for row in held.select_related("membership"):
        first, last, booked = unix(row.start), unix(row.end), unix(row.booked_end)
        rate = row.cost_gpu_seconds * PERMILLE // (last - first)
        pool = 0
        if row.peaked:
            # Each Allocation at the price it was booked at, up to the booked end.
            rate, pool = 10 * PERMILLE, world.gpus[0].pool_id
            if booked <= first:
                continue
        spend = Spend(first, min(last, booked), rate, pool)
        wanted.append((row.membership_id, row.membership.account_id, spend))
    found = booking_facts.spends_of(members, low, high, ignoring=pk, ignoring_late=pk)
    assert sorted(found, key=str) == sorted(wanted, key=str)
    assert len(found) > 5
    assert booking_facts.spends_of([], low, high) == []


@pytest.mark.once
def test_quotas_of_people(world: World) -> None:
    users = [user.pk for user in world.users[:3]]
    wanted: dict[int, dict[int, int | None]] = {}
    for one in Membership.objects.filter(user__in=users):
        wanted.setdefault(one.user_id, {})[one.pk] = one.quota_gpu_seconds
    assert booking_facts.quotas_of(users) == wanted


@pytest.mark.parametrize("ignored", [False, True])
def test_who_holds_gpus(world: World, ignored: bool) -> None:
    pk = world.random.choice(world.rows).pk if ignored else None
    low, high = NOW - HOUR * 10, NOW + HOUR * 10
    gpus = [gpu.pk for gpu in world.gpus[:4]]
    rows = Allocation.objects.filter(
        gpu_id__in=gpus, live=True, start__lt=high, end__gt=low
    ).exclude(reservation_id=pk or 0)
    found = booking_facts.held_between(gpus, low, high, ignoring=pk)
    assert sorted(found) == sorted(
        (
            one.gpu_id,
            one.start,
            one.end,
            one.reservation.user.display_name or one.reservation.user.username,
            one.reservation_id,
            one.reservation.kind,
            one.reservation.booked_end,
        )
        for one in rows.select_related("reservation__user")
    )
    assert found
    assert booking_facts.held_between([], low, high) == []


def test_who_stays_on(world: World) -> None:
    gpus, user = {gpu.pk for gpu in world.gpus[:2]}, world.users[0]
    seen = 0
    for hours in range(-40, 60, 7):
        after, but = NOW + HOUR * hours, world.random.choice(world.rows).pk
        rows = Reservation.objects.filter(
            Q(allocations__gpu_id__in=gpus) | Q(user=user),
            state=State.ACTIVE,
            booked_end__lt=F("end"),
            end__gt=after,
        ).exclude(pk=but)
        wanted = sorted(set(rows.values_list("pk", flat=True)))
        assert booking_facts.overstays(gpus, user.pk, after=after, but=but) == wanted
        seen += len(wanted)
    assert seen


def test_planned_starts_of_others(world: World) -> None:
    taker = Displacer(world.users[0].pk, NOW, freeze_seconds=3 * 3600)
    low, high = NOW - HOUR * 30, NOW + HOUR * 50
    rows = (
        WaitingRequest.objects.filter(
            planned=True,
            state=WaitingRequest.State.WAITING,
            expected_start__gt=taker.frozen_until,
            expected_start__lt=high,
            expected_end__gt=low,
        )
        .exclude(user_id=taker.user_pk)
        .order_by("pk")
    )
    found = sorted(
        booking_facts.plans_between(low, high, taker), key=lambda p: p.waiting_pk
    )
    assert [
        (p.waiting_pk, p.user_pk, p.gpu_pks, p.window.start, p.window.end)
        for p in found
    ] == [
        (
            row.pk,
            row.user_id,
            frozenset(row.expected_gpu_ids),
            row.expected_start,
            row.expected_end,
        )
        for row in rows
    ]


def test_closures_that_meet_a_span(world: World) -> None:
    low, high = NOW - HOUR * 10, NOW + HOUR * 20
    rows = Closure.objects.standing(low, high).order_by("start", "pk")
    found = booking_facts.closures_between(low, high)
    assert [
        (one.pk, one.kind, one.reason, one.start, one.end, one.scope) for one in found
    ] == [(row.pk, row.kind, row.reason, row.start, row.end, row.scope) for row in rows]
    for one, row in zip(found, rows, strict=True):
        account: Account | None = row.account
        assert one.gpu_pks == set(row.gpus.values_list("pk", flat=True))
        assert one.node == (row.node.name if row.node else "")
        assert one.pool_pk == (row.pool_id or 0)
        assert one.account_pk == row.account_id
        assert one.account == (str(account) if account else "")
        assert one.account_name == (account.name if account else "")
    assert found


def test_a_person_without_anything_has_no_facts(db) -> None:
    alone: User = make_user()
    assert booking_facts.own_holdings(alone.pk) == ()
    assert (
        booking_facts.strike_for(alone.pk, NOW + HOUR * 99, now=NOW, policy=Policy())
        is None
    )
    member = make_membership(alone, "alone")
    far = NOW + HOUR * 99
    assert booking_facts.returns_for(member, far, now=NOW, policy=Policy()) is None
    assert booking_facts.quotas_of([alone.pk]) == {alone.pk: {member.pk: None}}

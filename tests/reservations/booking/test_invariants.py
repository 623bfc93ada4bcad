"""Random sequences of actions. After each one the books and the calendar are correct.

See docs/design/fair-booking.md#i1, #i2, #i3, #i5, #i10 and #i14, with vouchers,
strikes, overstays, and samples that come or do not. The others are properties of the
pure core. ``rules/fairness/`` tests #i4 in ``test_promise``, #i6 in
``test_preemption_properties``, #i7 and #i11 in ``test_fair_tree_properties``. #i8 is in
``rules/fairness/test_quota_properties`` and, with #i9, in
``rules/test_charges_properties``. #i12 and #i13 are with the waitlist. Examples are
drawn the same each time, so a failure is repeatable.
"""

import json
import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from django.db.models import Sum
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from reservations import tick as tick_service
from reservations.booking import booking_change
from reservations.booking import release as giving
from reservations.booking import service as booking
from reservations.booking.overstay import set_overstay
from reservations.booking.release import undo_cancel
from reservations.models import (
    Account,
    Allocation,
    LateReturn,
    LedgerEntry,
    RefusedRequest,
    Reservation,
    SitePolicy,
    Voucher,
)
from reservations.rules.decision_record import (
    recompute,
    recompute_refusal,
    without_places,
)
from reservations.rules.fairness.quota import PERMILLE, SpendTotals
from reservations.rules.lifecycle import Kind, State
from reservations.rules.window import WEEK_SECONDS, Window, instant, unix
from reservations.store.booking_facts import site_policy
from reservations.store.booking_snapshot import account_path, quota_infos
from telemetry.protocol.coded_error import CodedError
from tests.factories import make_membership, make_user
from tests.reservations.conftest import HOUR, NOW, WEIGHT, make_minutes
from tests.reservations.worlds import on_each, world

CLOCKS_CHANGE = datetime(2026, 3, 28, 21, tzinfo=UTC)
"""Four hours before Europe's clocks change, with the night ahead."""
ACTS = (
    "book",
    "book",
    "book",
    "book",
    "book",
    "book",
    "cancel",
    "undo",
    "change",
    "release",
    "tick",
    "wait",
    "wait",
    "stay",
    "come",
    "fail",
    "set_rules",
)

BY_SOMEBODY = frozenset(ACTS) - {"tick", "wait", "fail", "set_rules"}


class Story:
    """One random history of a small lab."""

    def __init__(self, lab, users, now: datetime) -> None:
        self.lab, self.users, self.now = lab, users, now
        self.chance = random.Random(0)
        self.done: Counter[str] = Counter()
        self.again: dict[int, int] = {}
        """The version of a Reservation that was decided again from stored facts."""

    def act(self, name: str, number: int) -> None:
        """Do one random action. A refusal is allowed.

        See docs/design/fair-booking.md#i2. No action of a person changes others' firm
        or frozen time.
        """
        self.chance = random.Random(number)
        self.actor = None
        before = self.safe()
        try:
            getattr(self, name)()
            self.done[name] += 1
        except CodedError:
            self.done["refused"] += 1
        if name in BY_SOMEBODY and self.actor is not None:
            after = self.safe()
            for pk, stood in before.items():
                assert stood[0] == self.actor.pk or after.get(pk) == stood, name

    def safe(self) -> dict[int, tuple]:
        """Return the bookings that nobody else may change: firm, frozen and running."""
        freeze = self.now + timedelta(seconds=site_policy().freeze_seconds)
        rows = Reservation.objects.live().order_by()
        return {
            # Time past the booked end is neither, because anybody may claim it.
            pk: (user, start, min(end, booked_end), state)
            for pk, user, start, end, booked_end, state, kind in rows.values_list(
                "pk", "user_id", "start", "end", "booked_end", "state", "kind"
            )
            if kind == Kind.FIRM or start <= freeze
        }

    def by(self, user):
        """Record the acting user."""
        self.actor = user
        return user

    def some(self, *states: State) -> Reservation:
        rows = list(Reservation.objects.filter(state__in=states).order_by("pk"))
        if not rows:
            self.book()
            rows = list(Reservation.objects.order_by("pk"))
        return self.chance.choice(rows)

    def span(self) -> tuple[datetime, datetime]:
        ahead = self.chance.choice((0, 0, 1, 2, 5, 20, 21, 22, 30, 60))
        hours = self.chance.choice((1, 2, 3, 8))
        if not ahead:
            end = instant(unix(self.now) // HOUR * HOUR + HOUR * hours)
            return self.now, end
        start = instant((unix(self.now) // HOUR + ahead) * HOUR)
        return start, start + timedelta(hours=hours)

    def gpus(self) -> list[int]:
        return [
            g.pk
            for g in self.chance.sample(self.lab.gpus, self.chance.choice((1, 1, 2)))
        ]

    def book(self) -> None:
        start, end = self.span()
        user = self.by(self.chance.choice(self.users))
        tokens = Voucher.objects.filter(membership__user=user, used_for=None)
        token = tokens.first() if self.chance.random() < 0.5 else None
        if token is not None:
            start, end = (at + timedelta(days=14) for at in (start, end))
        made = booking.book(
            user=user,
            membership=None,
            gpu_ids=self.gpus(),
            start=start,
            end=end,
            now=self.now,
            voucher_id=token.pk if token else None,
            overstay=self.chance.random() < 0.2,
        )
        self.done["by token"] += Voucher.objects.filter(used_for=made).count()

    def stay(self) -> None:
        row = self.some(State.CONFIRMED, State.ACTIVE)
        set_overstay(reservation_id=row.pk, user=self.by(row.user), now=self.now)

    def come(self) -> None:
        """Samples of the next minutes, with or without the holder."""
        row = self.some(State.ACTIVE)
        seen = self.chance.choice((0, 60))
        gpus = [a.gpu for a in row.allocations.all()]
        if all(not gpu.minutes.exists() for gpu in gpus):
            for gpu in gpus:
                first = instant(unix(row.start) // 60 * 60 + 60)
                make_minutes(gpu, first, 20, process_n=seen)

    def fail(self) -> None:
        """A Gpu is lost for long enough: refunds and tokens."""
        if not Reservation.objects.filter(state=State.ACTIVE).exists():
            return
        row = self.some(State.ACTIVE)
        gpu = row.allocations.first().gpu
        for lost, minutes in ((True, 1), (True, 15), (False, 1)):
            gpu.lost = lost
            gpu.save(update_fields=["lost"])
            self.now += timedelta(minutes=minutes)
            tick_service.tick(self.now)

    def set_rules(self) -> None:
        """The admin changes what is charged for late returns: another version."""
        self.lab.set(late_return_ratio=self.chance.choice((0.5, 0.25)))

    def cancel(self) -> None:
        row = self.some(State.CONFIRMED)
        giving.cancel(reservation_id=row.pk, user=self.by(row.user), now=self.now)

    def undo(self) -> None:
        row = self.some(State.CANCELLED)
        undo_cancel(reservation_id=row.pk, user=self.by(row.user), now=self.now)

    def change(self) -> None:
        row = self.some(State.CONFIRMED, State.ACTIVE)
        start, end = self.span()
        fields: dict = {"end": end}
        if row.state == State.CONFIRMED:
            fields |= {"start": start, "gpu_ids": self.gpus()}
        booking_change.change(
            reservation_id=row.pk,
            user=self.by(row.user),
            version=row.version,
            now=self.now,
            **fields,
        )

    def release(self) -> None:
        row = self.some(State.ACTIVE)
        giving.release(reservation_id=row.pk, user=self.by(row.user), now=self.now)

    def tick(self) -> None:
        tick_service.tick(self.now)

    def wait(self) -> None:
        minutes = self.chance.choice((1, 7, 30, 60, 240))
        self.now += timedelta(minutes=minutes, seconds=self.chance.randrange(60))
        tick_service.tick(self.now)


def check_calendar() -> None:
    """No Gpu twice at any instant (docs/design/fair-booking.md#i1)."""
    held = Allocation.objects.filter(reservation__state__in=State.holding())
    order = "gpu_id", "start", "end"
    for one, after in pairwise(held.order_by(*order).values_list(*order)):
        assert one[0] != after[0] or one[2] <= after[1], (one, after)


def check_ledger() -> None:
    """HOLD + RELEASE is the cost of what is live, and nothing afterwards."""
    held = dict(
        LedgerEntry.objects.exclude(kind=LedgerEntry.Kind.CHARGE)
        .order_by()
        .values_list("reservation")
        .annotate(Sum("gpu_seconds"))
    )
    rows = Reservation.objects.order_by().values_list("pk", "state", "cost_gpu_seconds")
    for pk, state, cost in rows:
        assert held.get(pk, 0) == (cost if state in State.live() else 0), pk


def check_quotas(users) -> None:
    """Every window of 7 days, wherever it begins (docs/design/fair-booking.md#i3)."""
    policy = site_policy()
    for user in users:
        member = user.memberships.get()
        start, end = NOW - timedelta(days=10), NOW + timedelta(days=30)
        for info in quota_infos(
            member, account_path(member), start, end, policy=policy
        ):
            load = SpendTotals(info.spends)
            edges = {s.start for s in info.spends} | {s.end for s in info.spends}
            for edge in edges | {edge - WEEK_SECONDS for edge in edges}:
                spent = load.between(edge, edge + WEEK_SECONDS)
                assert spent <= info.quota_gpu_seconds * PERMILLE, info.account


def check_notices() -> None:
    """A displaced person got the whole hold back, and one notice.

    See docs/design/fair-booking.md#i5.
    """
    gone = Reservation.objects.filter(state=State.DISPLACED)
    for row in gone:
        notice = row.notices.get(kind="displaced")
        assert notice.user_id == row.user_id
        assert notice.told_at < row.start - timedelta(hours=12)
        assert notice.detail["refund_gpu_seconds"] == row.cost_gpu_seconds
        assert row.kind == Kind.FLEX


def check_sums() -> None:
    """Charges of all and of the site = time held x weight + late charges.

    See docs/design/fair-booking.md#i10.
    """
    charges = LedgerEntry.objects.filter(kind=LedgerEntry.Kind.CHARGE)
    charged = charges.aggregate(n=Sum("gpu_seconds"))["n"] or 0
    over = Allocation.objects.filter(
        reservation__state__in=[State.ENDED, State.RELEASED, State.REFUNDED]
    )
    held = sum(WEIGHT * (unix(a.end) - unix(a.start)) for a in over)
    late: dict[tuple, int] = defaultdict(int)
    for part in LateReturn.objects.exclude(charged_at=None):
        seconds = Window(part.start, part.end).seconds
        charge = part.reservation_id, part.charged_at
        late[charge] += seconds * part.weight * part.permille
    assert charged == held + sum(cost // PERMILLE for cost in late.values())


def check_decided_again(story: Story) -> None:
    """The stored facts give the same decision by the rules of their version.

    See docs/design/fair-booking.md#i14.
    """
    for pk, version, decision in Reservation.objects.order_by().values_list(
        "pk", "version", "decision"
    ):
        stored = decision.get("inputs")
        if stored is None or story.again.get(pk) == version:
            continue
        policy = SitePolicy.of_version(stored["policy"])
        assert policy is not None
        again = json.loads(json.dumps(recompute(stored, policy)))
        assert again == without_places(decision), pk
        story.again[pk] = version
    check_refused_again()


def check_refused_again() -> None:
    """Refusals too: the same rule, and the same numbers without names.

    See docs/design/fair-booking.md#i14.
    """
    for row in RefusedRequest.objects.exclude(inputs=None).select_related("membership"):
        policy = SitePolicy.of_version(row.inputs["policy"])
        assert policy is not None
        again = recompute_refusal(row.inputs, policy)
        assert again is not None, row.text
        assert again.code == row.rule
        told = json.loads(json.dumps(again.numbers))
        assert told == row.fields, row.text


def tell(story: Story, acts: list[tuple[str, int]]) -> None:
    """Do one action after another, with all checks in between and at the end."""
    for number, act in enumerate(acts):
        story.act(*act)
        check_calendar()
        check_ledger()
        if number % 6 == 0:
            check_quotas(story.users)
            check_decided_again(story)
    check_quotas(story.users)
    check_decided_again(story)
    check_notices()
    for hours in (0, 60 * 24):
        tick_service.tick(story.now + timedelta(hours=hours))
    tick_service.tick(story.now + timedelta(days=60, seconds=1))
    assert not Reservation.objects.live().exists()
    assert not LateReturn.objects.filter(charged_at=None).exists()
    check_ledger()
    check_sums()


def test_books_calendar_and_quotas_hold_whatever_people_do(
    lab, alice, bob, carol
) -> None:
    lab.set(quota_gpu_seconds=WEIGHT * 6 * HOUR)
    Account.objects.filter(name="vision").update(quota_gpu_seconds=WEIGHT * 14 * HOUR)
    users = [alice, bob, carol, *(make_user(f"student{n}") for n in range(4))]
    for number, user in enumerate(users[3:]):
        make_membership(user, ("vision", "nlp")[number % 2])
    done: Counter[str] = Counter()

    @given(
        st.sampled_from((NOW, CLOCKS_CHANGE)),
        st.lists(
            st.tuples(st.sampled_from(ACTS), st.integers(0, 2**32)),
            min_size=50,
            max_size=50,
        ),
    )
    @settings(
        max_examples=on_each(sqlite=10, postgresql=3),
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
    )
    def stories(start: datetime, acts: list[tuple[str, int]]) -> None:
        with world():
            story = Story(lab, users, start)
            tell(story, acts)
            done.update(story.done)
            kept = RefusedRequest.objects.exclude(inputs=None)
            done.update(f"no: {rule}" for rule in kept.values_list("rule", flat=True))
            done["strikes"] += Reservation.objects.filter(no_show=True).count()
            done["displaced"] += Reservation.objects.filter(state="displaced").count()

    stories()
    least, booked = on_each(sqlite=3, postgresql=1), on_each(sqlite=30, postgresql=15)
    assert min(done[act] for act in ("refused", "cancel", "stay")) > least, done
    assert done["book"] > booked, done
    rules = [what for what in done if what.startswith("no: ")]
    assert len(rules) > on_each(sqlite=2, postgresql=0), done


def test_flex_counts_in_no_quota_and_is_paid_all_the_same(lab, alice) -> None:
    lab.set(quota_gpu_seconds=0)
    made = lab.book(alice, lab.gpus[:1], NOW, 2)
    assert made.kind == Kind.FLEX
    tick_service.tick(NOW + timedelta(hours=3))
    charges = LedgerEntry.objects.filter(kind=LedgerEntry.Kind.CHARGE)
    assert charges.get().gpu_seconds == WEIGHT * 2 * HOUR

"""Who is displaced by whom, on small numbers that can be checked by hand."""

from datetime import UTC, datetime, timedelta
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reservations.rules.calendar import (
    BusySpan,
    Calendar,
    CalendarGpu,
    FlexInfo,
    SlotWish,
)
from reservations.rules.errors import GpuTaken
from reservations.rules.fairness.fair_tree import AccountShares, MemberShares, rank_tree
from reservations.rules.fairness.preemption import (
    FairTree,
    FlexHeld,
    check_above,
    deciding,
    displaced_by,
    fewest_displaced,
    flex_to_displace,
    keys,
    ranks_above,
)
from reservations.rules.window import Window, unix
from tests.reservations.rules.strategies import trees

NOON = datetime(2026, 3, 3, 12, tzinfo=UTC)
HOUR = 3600
LAB = (AccountShares(1, None), AccountShares(2, 1), AccountShares(3, 1))


def gpu(pk: int, node: str = "n", weight: int = 1) -> CalendarGpu:
    return CalendarGpu(pk, node, pk, "A30", 24 * 2**30, weight)


def flex(pk: int, member: int, *, hours: int = 1, minute: int = 0) -> FlexInfo:
    return FlexInfo(
        reservation_pk=pk,
        membership_pk=member,
        account_pk=2,
        account="vision",
        start=NOON,
        end=NOON + timedelta(hours=hours),
        cost_gpu_seconds=hours * HOUR,
        booked_at=NOON + timedelta(minutes=minute),
    )


def busy(gpu_pk: int, held: FlexInfo | None) -> BusySpan:
    end = held.end if held else NOON + timedelta(hours=1)
    return BusySpan(gpu_pk, unix(NOON), unix(end), "Bo", held)


def window(hours: int = 1) -> Window:
    return Window(NOON, NOON + timedelta(hours=hours))


def tree(usage: dict[int, int], accounts=LAB, of=None) -> FairTree:
    """Members 10 and 11 in Account 2, 12 in Account 3."""
    of = of or {10: 2, 11: 2, 12: 3}
    members = (MemberShares(pk, of[pk], 1, usage.get(pk, 0)) for pk in of)
    return FairTree(tuple(accounts), tuple(members))


def taken(fair: FairTree, by: int, cost: int, *held: FlexInfo):
    found = displaced_by(
        held, member_pk=by, more_gpu_seconds=cost, tree=fair, freeze_seconds=12 * HOUR
    )
    check_above(found, on={one.reservation_pk: "n:1" for one in held})
    return found


def test_who_is_served_worse_even_then_takes_flex() -> None:
    (one,) = taken(tree({10: 10 * HOUR, 12: 1 * HOUR}), 12, HOUR, flex(1, 10))
    assert one.refund_gpu_seconds == HOUR
    assert one.frozen_at == NOON - timedelta(hours=12)
    own, theirs = deciding(one.own, one.theirs)
    assert (own.pk, theirs.pk) == (3, 2), "the groups decide, not the people"
    assert own.level.level_fs > theirs.level.level_fs
    assert (one.place_before, one.place_after) == (3, 3)


def test_standing_above_now_is_not_enough() -> None:
    # 12 is above 10 now. With the hour it would only be level.
    fair = tree({10: 3 * HOUR, 12: 1 * HOUR}, [AccountShares(1, None)], {10: 1, 12: 1})
    ranks = fair.ranked().ranks
    assert ranks[12].rank > ranks[10].rank
    with pytest.raises(FlexHeld) as held:
        taken(fair, 12, HOUR, flex(1, 10))
    assert held.value.own_level_fs == held.value.their_level_fs == 1.0
    assert "1.0×" in held.value.text()
    assert held.value.numbers["gpu"] == "n:1"


def test_all_in_the_way_must_stand_below() -> None:
    usage = {10: 9 * HOUR, 11: 2 * HOUR, 12: HOUR}
    accounts = [AccountShares(1, None)]
    flat = dict.fromkeys(usage, 1)
    fair = tree(usage, accounts, flat)
    assert taken(fair, 12, HOUR, flex(1, 10))
    with pytest.raises(FlexHeld):
        taken(fair, 12, HOUR, flex(1, 10), flex(2, 11))


def test_firm_frozen_and_own_time_is_in_nobodys_way_to_take() -> None:
    calendar = Calendar([gpu(1), gpu(2)], [busy(1, flex(7, 10)), busy(2, None)])
    assert [
        f.reservation_pk for f in flex_to_displace([gpu(1)], window(), calendar)
    ] == [7]
    with pytest.raises(GpuTaken):
        flex_to_displace([gpu(1), gpu(2)], window(), calendar)


def test_one_reservation_on_two_gpus_is_one_victim() -> None:
    held = flex(7, 10)
    calendar = Calendar([gpu(1), gpu(2)], [busy(1, held), busy(2, held)])
    assert len(flex_to_displace([gpu(1), gpu(2)], window(), calendar)) == 1


def test_fewest_then_lowest_ranked_then_newest() -> None:
    ranks = {10: 1, 11: 2, 12: 3}
    both = [gpu(n) for n in (1, 2, 3, 4)]
    low, high, newest = flex(1, 10), flex(2, 12), flex(3, 10, minute=5)
    wide = flex(4, 12)
    spans = [busy(1, low), busy(2, high), busy(3, newest), busy(4, low)]
    one = fewest_displaced(
        Calendar(both, spans), window(), SlotWish(1, HOUR), ranks=ranks
    )
    assert [g.pk for g in one[0]] == [3], "of equal owners the newest"
    two = fewest_displaced(
        Calendar(both, spans), window(), SlotWish(2, HOUR), ranks=ranks
    )
    assert [g.pk for g in two[0]] == [1, 4], "one reservation on both: the fewest"
    spans = [busy(1, low), busy(2, wide), busy(3, wide), busy(4, high)]
    two = fewest_displaced(
        Calendar(both, spans), window(), SlotWish(2, HOUR), ranks=ranks
    )
    assert [g.pk for g in two[0]] == [2, 3], "fewest before lowest-ranked"


@given(trees())
@settings(max_examples=150)
def test_paths_compare_exactly_as_ranks_do(drawn) -> None:
    accounts, members = drawn
    ranking = rank_tree(accounts, members)
    for one in members:
        for two in members:
            above = ranking.ranks[one.pk].rank > ranking.ranks[two.pk].rank
            own, theirs = keys(ranking.path(one.pk)), keys(ranking.path(two.pk))
            if ranks_above(own, theirs):
                assert above
            elif above:
                # Only a user that ties with an account ranks above some below it.
                pairs = zip(own, theirs, strict=False)
                one_key, two_key = next((a, b) for a, b in pairs if a != b)
                assert one_key[:2] == two_key[:2]


@given(
    st.lists(st.lists(st.integers(0, 5), max_size=2), min_size=1, max_size=6),
    st.integers(1, 3),
    st.lists(st.integers(1, 3), min_size=6, max_size=6),
)
@settings(max_examples=150)
def test_brute_force_finds_no_better_victims(on_gpus, count, owners) -> None:
    """Each Gpu with up to two of six Reservations one after another."""
    victims = [flex(pk, 10 + owners[pk], minute=pk % 2) for pk in range(6)]
    ranks = {11: 1, 12: 2, 13: 3}
    gpus = [gpu(pk) for pk in range(len(on_gpus))]
    noon = unix(NOON)
    spans = [
        BusySpan(pk, noon + place * HOUR, noon + (place + 1) * HOUR, "", victims[v])
        for pk, held in enumerate(on_gpus)
        for place, v in enumerate(dict.fromkeys(held))
    ]
    found = fewest_displaced(
        Calendar(gpus, spans), window(2), SlotWish(count, 2 * HOUR), ranks=ranks
    )
    if count > len(gpus):
        assert not found
        return

    def burden(chosen: tuple[int, ...]) -> tuple[int, list[tuple[int, int, int]]]:
        gone = {v for pk in chosen for v in on_gpus[pk]}
        order = [(ranks[10 + owners[v]], -(v % 2), -v) for v in gone]
        return len(gone), sorted(order)

    best = min(burden(c) for c in combinations(range(len(gpus)), count))
    assert burden(tuple(g.pk for g in found[0])) == best

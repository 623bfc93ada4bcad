"""If the quotas fit into the pool, own headroom is time that is really there.

See docs/design/fair-booking.md#i4.
"""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from reservations.rules.fairness.promise import (
    PoolCapacity,
    QuotaClaim,
    admitted,
    pool_promises,
    promised_from,
)
from reservations.rules.fairness.quota import (
    PERMILLE,
    QuotaInfo,
    Spend,
    SpendTotals,
    fits,
)
from reservations.rules.policy import Policy
from reservations.rules.window import WEEK_SECONDS, Window, instant, unix

HOUR = 3600
NOW = datetime(2026, 3, 27, 9, tzinfo=UTC)
"""Two days before Europe's clocks change."""
POLICY = Policy()
FIRST = promised_from(NOW, POLICY)


@st.composite
def asks(draw: st.DrawFn) -> list[tuple[int, Window, int]]:
    """Requests of up to five members within three weeks: who, when, weighted Gpus."""
    found = []
    for _ in range(draw(st.integers(1, 25))):
        start = NOW + timedelta(hours=draw(st.integers(1, 14 * 24)))
        hours = draw(st.integers(1, 24))
        window = Window(start, start + timedelta(hours=hours))
        found.append((draw(st.integers(1, 5)), window, draw(st.sampled_from((1, 2)))))
    return found


@given(asks(), st.lists(st.integers(0, 60), min_size=5, max_size=5), st.data())
@settings(max_examples=60)
def test_others_hold_no_more_than_their_quotas_so_ones_own_block_is_there(
    asked, quotas, data
) -> None:
    quota = {pk: hours * HOUR for pk, hours in enumerate(quotas, 1)}
    held: dict[int, list[Spend]] = {pk: [] for pk in quota}
    for member, window, rate in asked:
        info = QuotaInfo("own", quota[member], tuple(held[member]))
        if fits(info, window, rate=rate):
            held[member].append(Spend.held(window, rate=rate))
    pool = PoolCapacity(1, "A30", max(-(-sum(quota.values()) // WEEK_SECONDS), 1), 1)
    claims = [QuotaClaim(pk, most) for pk, most in quota.items()]
    (promise,) = pool_promises([pool], claims)
    assert promise.kept
    me = data.draw(st.sampled_from(sorted(quota)))
    others = SpendTotals([s for pk, found in held.items() if pk != me for s in found])
    begin = unix(FIRST) + data.draw(st.integers(0, 10 * 24)) * HOUR
    spent = others.between(begin, begin + WEEK_SECONDS)
    assert spent <= sum(most for pk, most in quota.items() if pk != me) * PERMILLE
    own = QuotaInfo("own", quota[me], tuple(held[me]))
    block = Window.of(instant(begin), seconds=data.draw(st.integers(1, 24)) * HOUR)
    assume(fits(own, block, rate=1))
    free = pool.week_gpu_seconds * PERMILLE - spent
    assert free >= block.seconds * PERMILLE, "that much of the window is nobody else's"


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=4))
@settings(max_examples=25)
def test_a_block_may_begin_where_it_is_told_and_nowhere_else(taken) -> None:
    spends = tuple(
        Spend(unix(NOW) + at * HOUR, unix(NOW) + (at + hours) * HOUR, PERMILLE)
        for at, hours in taken
    )
    info = QuotaInfo("own", 30 * HOUR, spends)
    end = NOW + timedelta(hours=48)
    spans = admitted(
        [info], start=NOW, end=end, rate=1, seconds=4 * HOUR, grid_seconds=HOUR
    )
    for hour in range(45):
        at = NOW + timedelta(hours=hour)
        told = any(span.holds(at) for span in spans)
        assert told == fits(info, Window.of(at, seconds=4 * HOUR), rate=1)
    assert all(one.end < two.start for one, two in pairwise(spans))


def test_the_tree_bounds_what_its_members_may_claim() -> None:
    pools = [PoolCapacity(1, "A100", 1, 10), PoolCapacity(2, "T4", 1, 2)]
    parents = {1: None, 2: 1, 3: 1, 4: 2}
    claims = [
        QuotaClaim(11, 100, (4, 2, 1)),
        QuotaClaim(12, 100, (4, 2, 1), pool_quotas={1: 30}),
        QuotaClaim(13, 100, (3, 1), pools=frozenset({2})),
        QuotaClaim(14, 7),
    ]

    def sums(**bounds) -> list[int]:
        found = pool_promises(pools, claims, parents=parents, **bounds)
        return [one.claims_gpu_seconds for one in found]

    assert sums() == [137, 307]
    assert sums(account_quotas={4: 120}) == [127, 227]
    assert sums(account_quotas={2: 50, 1: 140}) == [57, 147]
    assert sums(account_pool_quotas={(1, 2): 90}) == [137, 97]

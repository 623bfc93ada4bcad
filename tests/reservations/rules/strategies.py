"""Random windows, trees and spends for the property tests."""

from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from reservations.rules.fairness.fair_tree import AccountShares, MemberShares
from reservations.rules.fairness.quota import Spend
from reservations.rules.window import Window, unix

ORIGIN = datetime(2026, 3, 1, tzinfo=UTC)
"""Three weeks before Europe's clocks change."""


@st.composite
def windows(draw: st.DrawFn, *, days: int = 40, most_hours: int = 30) -> Window:
    """Windows on the minute."""
    start = draw(st.integers(0, days * 24 * 60))
    minutes = draw(st.integers(1, most_hours * 60))
    begin = ORIGIN + timedelta(minutes=start)
    return Window(begin, begin + timedelta(minutes=minutes))


@st.composite
def spends(draw: st.DrawFn) -> Spend:
    """Firm cost of one Reservation, or of late hours at a part of the price."""
    window = draw(windows())
    rate = draw(st.integers(1, 40)) * draw(st.sampled_from((500, 1000)))
    return Spend(unix(window.start), unix(window.end), rate)


@st.composite
def trees(
    draw: st.DrawFn, *, parents: bool = True
) -> tuple[list[AccountShares], list[MemberShares]]:
    """Trees with few distinct numbers, so that ties are common."""
    shares = st.sampled_from((0, 1, 1, 2, 3))
    if parents:
        shares = st.one_of(shares, st.none())
    count = draw(st.integers(1, 6))
    accounts = [AccountShares(1, None)]
    for pk in range(2, count + 1):
        accounts.append(AccountShares(pk, draw(st.integers(1, pk - 1)), draw(shares)))
    members = [
        MemberShares(
            100 + number,
            draw(st.integers(1, count)),
            draw(shares),
            draw(st.sampled_from((0, 0, 1, 2, 3, 6, 12))),
        )
        for number in range(draw(st.integers(0, 9)))
    ]
    return accounts, members

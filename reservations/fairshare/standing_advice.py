"""Ways to a better rank, in sentences with numbers."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from django.utils import timezone

from reservations.fairshare.projection import projected_ranking
from reservations.fairshare.service import MembershipStanding
from reservations.models import Membership, Reservation
from reservations.rules.fairness.fair_tree import Ranking, decayed_gpu_seconds
from reservations.rules.fairness.preemption import FairTree
from reservations.rules.fairness.rank_advice import (
    Branch,
    diverging_nodes,
    surplus_usage,
)
from reservations.rules.figures import credits_text, time_text
from reservations.rules.lifecycle import State
from reservations.rules.policy import Policy
from reservations.rules.window import unix
from reservations.store.booking_snapshot import account_path
from reservations.store.usage import fair_tree, usage_by_membership
from telemetry.protocol.sentences import joined, sentence

LOOK_AHEAD = timedelta(days=7)
MOST_BOOKINGS = 3
"""Bookings of which the return is computed one by one, the most expensive first."""


def ordinal(number: int) -> str:
    """Return 1st, 2nd, 3rd, 4th, 11th.

    >>> ordinal(1), ordinal(12), ordinal(23)
    ('1st', '12th', '23rd')
    """
    if number % 100 in (11, 12, 13):
        return sentence("{n}th", n=number)
    template = {1: sentence("{n}st"), 2: sentence("{n}nd"), 3: sentence("{n}rd")}
    return sentence(template.get(number % 10, sentence("{n}th")), n=number)


def advice(shown: MembershipStanding, policy: Policy, *, own: bool) -> list[str]:
    """Say what would improve the rank: the next member ahead, giving back, waiting."""
    if shown.place is None:
        return []
    now = timezone.now()
    # Read once. Every "what if" below ranks the same tree again.
    tree = fair_tree(usage_by_membership(now, policy), now, policy)
    ranks = tree.ranked() if tree else None
    pk = shown.membership.pk
    if tree is None or ranks is None or pk not in ranks.ranks:
        return []
    told: list[str] = []
    if shown.place == 1:
        told.append(sentence("Nobody is served before you.") if own else "")
    else:
        told.append(_rival_text(shown.membership, ranks, policy, own=own))
        told += _giving_back(pk, shown.place, tree, now)
    told.append(_waiting(pk, shown.place, shown.of, now, policy, own=own))
    return [words for words in told if words]


def _giving_back(pk: int, place: int, tree: FairTree, now: datetime) -> Iterator[str]:
    """Say how many places each expensive booking ahead costs, and all of them."""
    rows = list(
        Reservation.objects.live()
        .filter(membership_id=pk)
        .order_by("-cost_gpu_seconds", "start")
    )
    ahead = [row for row in rows if row.state == State.CONFIRMED and row.start > now]
    for row in ahead[:MOST_BOOKINGS]:
        better = tree.ranked({pk: -row.cost_gpu_seconds}).place(pk)
        if better < place:
            when = time_text(row.start, timezone.get_current_timezone())
            yield sentence(
                "Giving back {when} ({credits}, reservation {pk}) would improve the "
                "rank to {rank}.",
                when=when,
                credits=credits_text(row.cost_gpu_seconds),
                pk=row.pk,
                rank=ordinal(better),
            )
    booked = sum(row.cost_gpu_seconds for row in rows)
    if booked:
        better = tree.ranked({pk: -booked}).place(pk)
        count = sentence(
            "{credits} booked ahead count as used.", credits=credits_text(booked)
        )
        moves = (
            sentence("Without them the rank would be {rank}.", rank=ordinal(better))
            if better != place
            else sentence("The rank would be the same without them.")
        )
        yield joined([count, moves])


def _waiting(
    pk: int, place: int, of: int, now: datetime, policy: Policy, *, own: bool
) -> str:
    """Say what decays, and the rank in a week if nobody books anything."""
    then = projected_ranking(now, now + LOOK_AHEAD, policy)
    days = policy.half_life_seconds / 86_400
    fades = sentence("Past use counts half after {days} days.", days=f"{days:g}")
    if then is None or pk not in then.ranks:
        return fades
    later = then.place(pk)
    values = {"later": ordinal(later), "place": ordinal(place), "of": of}
    if own and later == place:
        moves = sentence(
            "With no new bookings, you would still be {later} of {of} in 7 days.",
            **values,
        )
    elif own:
        moves = sentence(
            "With no new bookings, you would be {later} instead of {place} of {of} in "
            "7 days.",
            **values,
        )
    elif later == place:
        moves = sentence(
            "With no new bookings, they would still be {later} of {of} in 7 days.",
            **values,
        )
    else:
        moves = sentence(
            "With no new bookings, they would be {later} instead of {place} of {of} in "
            "7 days.",
            **values,
        )
    return joined([fades, moves])


def _rival_text(
    member: Membership, ranks: Ranking, policy: Policy, *, own: bool
) -> str:
    """Compare with the next member ahead, on the level where the paths part."""
    mine = ranks.ranks[member.pk].rank
    ahead = [(rank.rank, pk) for pk, rank in ranks.ranks.items() if rank.rank > mine]
    rival = Membership.objects.select_related(
        "user", "account__parent__parent__parent"
    ).get(pk=min(ahead)[1])
    parted = diverging_nodes(_steps(member), _steps(rival))
    if parted is None:
        return ""
    here, there = (_branch(step, ranks) for step in parted)
    named = parted[1][0] == "account" or policy.names_visible
    name = there.title if named else sentence("a member")
    less = surplus_usage(here, there)
    if less is None:
        return sentence(
            "{name} is next ahead and has not used anything yet.", name=name
        )
    seconds = decayed_gpu_seconds(
        max(less, 0),
        unix_seconds=unix(timezone.now()),
        half_life_seconds=policy.half_life_seconds,
    )
    values = {
        "name": name,
        "credits": credits_text(round(max(seconds, 3600 / 10))),
    }
    if own and parted[0][0] == "member":
        return sentence("You would pass {name} with {credits} less use.", **values)
    return sentence(
        "{who} would pass {name} with {credits} less use.", who=here.title, **values
    )


def _steps(membership: Membership) -> list[tuple[str, int, str]]:
    """Return the path from the root: (kind, pk, title) of each node."""
    accounts = reversed(account_path(membership))
    steps = [("account", account.pk, str(account)) for account in accounts]
    return [*steps, ("member", membership.pk, str(membership.user))]


def _branch(step: tuple[str, int, str], ranks: Ranking) -> Branch:
    kind, pk, title = step
    level = ranks.member_level(pk) if kind == "member" else ranks.account_level(pk)
    return Branch(title, level.norm_shares, level.usage)

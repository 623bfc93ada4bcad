"""The chance that unfrozen flex is displaced, from the present waitlist. Pure.

Waiting requests of other people that could use one of its Gpus count. A request may
take it if its Membership, with the cost of the request, would rank strictly above the
holder without this booking (docs/design/fair-booking.md#rule-2). Its weight is the
share of its possible starts, every hour from its earliest to its latest, that meet the
booking. The chance is that at least one of them needs this time: 1 - the product of
(1 - weight). Future requests are unknown, so the page also shows how many members rank
above the holder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reservations.rules.calendar import CalendarFlexRisk, CalendarGpu
from reservations.rules.fairness.preemption import FairTree, keys, ranks_above
from reservations.rules.window import HOUR_SECONDS, Window, unix
from reservations.waitlist.openings import WaitingRequestInfo
from telemetry.protocol.sentences import counted, joined, sentence

MOST_RIVALS = 30
"""Only the first ones in order are compared. Later ones hardly rank above the
holder.
"""


@dataclass(frozen=True, slots=True)
class FlexRisk:
    """The risk of a flex booking before its freeze."""

    ratio: float
    """The chance that a waiting request displaces it, 0 to 1."""
    waiting: int
    """Requests of others that could use one of its Gpus then."""
    above: int
    """Those of them that may displace it."""
    members_above: int
    """Memberships that rank above its holder's now."""
    members: int

    def to_json(self) -> CalendarFlexRisk:
        """Return it as the API sends it, with its sentences."""
        return {
            "ratio": round(self.ratio, 3),
            "waiting": self.waiting,
            "above": self.above,
            "members_above": self.members_above,
            "members": self.members,
            "text": chance_text(self),
        }


def chance_of(
    gpus: Sequence[CalendarGpu],
    window: Window,
    *,
    member_pk: int,
    user_pk: int,
    cost_gpu_seconds: int,
    queue: Sequence[WaitingRequestInfo],
    tree: FairTree,
    held: bool,
) -> FlexRisk:
    """Return the chance that a waiting request displaces the flex.

    Args:
        queue: in order. The holder's own requests do not count.
        held: whether the tree already counts it, because it is booked.
    """
    rivals = [
        one
        for one in queue
        if one.user_pk != user_pk
        and one.takes
        and any(one.wish.fits(gpu) for gpu in gpus)
        and meeting_ratio(one, window) > 0
    ][:MOST_RIVALS]
    without = -cost_gpu_seconds if held else 0
    spared = 1.0
    above = 0
    for one in rivals:
        # With its cost from here on.
        begin = unix(window.start)
        over = begin + one.wish.duration_seconds
        cost = one.wish.count * min(
            gpu.tariff.between(begin, over) for gpu in gpus if one.wish.fits(gpu)
        )
        after = tree.ranked({one.member_pk: cost, member_pk: without})
        if ranks_above(keys(after.path(one.member_pk)), keys(after.path(member_pk))):
            above += 1
            spared *= 1 - meeting_ratio(one, window)
    ranking = tree.ranked()
    return FlexRisk(
        ratio=1 - spared,
        waiting=len(rivals),
        above=above,
        members_above=ranking.place(member_pk) - 1,
        members=len(ranking.ranks),
    )


def meeting_ratio(one: WaitingRequestInfo, window: Window) -> float:
    """Return the share of a request's possible starts that overlap a Window.

    Starts are counted every hour from its earliest on. There is at least one.
    """
    first = unix(one.earliest)
    last = unix(one.latest) - one.wish.duration_seconds
    starts = range(first, max(last, first) + 1, HOUR_SECONDS)
    begin, end = unix(window.start), unix(window.end)
    meet = sum(at < end and at + one.wish.duration_seconds > begin for at in starts)
    return meet / len(starts)


def chance_text(chance: FlexRisk) -> str:
    """Say it in sentences, with the numbers it is made of.

    >>> chance_text(FlexRisk(0.25, 3, 1, 4, 30))
    'The chance that it is taken is 25 %: 1 of 3 waiting requests for such a GPU is \
ahead of you. 4 of 30 members are ahead of you in the ranking and could take it.'
    """
    ahead = (
        counted(
            "{n} of {members} members is ahead of you in the ranking and could take "
            "it.",
            "{n} of {members} members are ahead of you in the ranking and could take "
            "it.",
            chance.members_above,
            members=chance.members,
        )
        if chance.members_above
        else sentence("Nobody is ahead of you in the ranking now.")
    )
    if not chance.waiting:
        return joined([ahead, sentence("Nobody is asking now.")])
    waiting = counted(
        "{n} waiting request for such a GPU",
        "{n} waiting requests for such a GPU",
        chance.waiting,
    )
    values = {"percent": round(100 * chance.ratio), "waiting": waiting}
    rivals = (
        counted(
            "The chance that it is taken is {percent} %: {n} of {waiting} is ahead of "
            "you.",
            "The chance that it is taken is {percent} %: {n} of {waiting} are ahead of "
            "you.",
            chance.above,
            **values,
        )
        if chance.above
        else sentence(
            "The chance that it is taken is {percent} %: none of {waiting} are ahead "
            "of you.",
            **values,
        )
    )
    return joined([rivals, ahead])

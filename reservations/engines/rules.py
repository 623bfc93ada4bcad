"""What an engine should hold for a reservation, and the next request to it. Pure.

The database says what should be held. The engine says what it holds. `next_step`
compares them, so that a request that was lost, or made twice, does no harm.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from reservations.engines.engine_port import HoldInfo
from reservations.rules.lifecycle import Kind, State
from reservations.rules.policy import Policy

STOP_SECONDS = 60
"""If jobs have not ended so long after they were cancelled, the hold is shortened."""
SHORTENED_SECONDS = 60
"""A hold that is shortened ends so long from now."""


class Step(StrEnum):
    """The next request about one hold."""

    NOTHING = "nothing"
    RESERVE = "reserve"
    CHANGE = "change"
    RELEASE = "release"
    STOP = "stop"
    """Jobs have had their grace and are in the way."""
    SHORTEN = "shorten"
    """The jobs do not end: let the hold end soon."""
    FORGET = "forget"
    """It is gone, as it should be."""
    NO_SHOW = "no-show"
    """The engine dropped it because nobody came."""
    UNUSED = "unused"
    """Nothing ran in it, but somebody may have come: the engine dropped it and was not
    watched all the time, or the portal watches a number of GPUs, and misses short jobs.
    """


@dataclass(frozen=True, slots=True)
class HoldFacts:
    """The stored facts about one reservation and its hold."""

    wanted: HoldInfo | None
    """None: the reservation is over, or is not held yet."""
    confirmed: bool
    """Whether the engine has confirmed the hold at some time."""
    asked_at: datetime | None = None
    """When it was last asked for this hold."""
    leaving_since: datetime | None = None
    """Since when it should be gone."""
    grace_seconds: float = 0.0
    """The time that jobs get to end."""
    idle_seconds: int = 0
    """After how long without a job the reservation is released; 0: never."""
    watched_since: datetime | None = None
    """Since when the engine has been asked without a gap. None: it is not known."""


def is_due(
    state: State, kind: Kind, start: datetime, *, now: datetime, policy: Policy
) -> bool:
    """Return whether a reservation is to be held in the engine.

    Flex is not, as long as another person may take it (docs/design/fair-booking.md
    #rule-3). Nobody would get what the engine holds then.
    """
    if state not in State.live():
        return False
    freeze = timedelta(seconds=policy.freeze_seconds)
    return kind is Kind.FIRM or start - now <= freeze


def idle_seconds_of(policy: Policy, *, came: bool) -> int:
    """Return after how long without a job the engine drops a hold; 0: never."""
    return policy.no_show_seconds if policy.release_no_shows and not came else 0


def next_step(
    facts: HoldFacts, seen: HoldInfo | None, *, seen_at: datetime, now: datetime
) -> Step:
    """Return the next request about a hold.

    Args:
        seen: the hold in the engine's last answer. None: it has none of this name.
        seen_at: when it was asked.
    """
    wanted = facts.wanted
    if facts.asked_at is not None and facts.asked_at >= seen_at:
        return Step.NOTHING  # that answer is older than the last request
    if wanted is None:
        return _step_to_leave(facts, seen, now)
    if seen is not None:
        # Slurm does not always take PURGE_COMP off a number of GPUs, so it has none.
        if wanted.is_part and facts.idle_seconds:
            absent = wanted.start + timedelta(seconds=facts.idle_seconds)
            if absent <= seen_at:
                return Step.UNUSED
        same = seen == _as_begun(wanted, seen, now)
        return Step.NOTHING if same else Step.CHANGE
    absent = wanted.start + timedelta(seconds=wanted.idle_seconds)
    if facts.confirmed and wanted.idle_seconds and absent <= seen_at:
        since = facts.watched_since
        watched = since is not None and since <= wanted.start
        return Step.NO_SHOW if watched else Step.UNUSED
    return Step.RESERVE


def _step_to_leave(facts: HoldFacts, seen: HoldInfo | None, now: datetime) -> Step:
    if seen is None:
        return Step.NOTHING if facts.asked_at is None else Step.FORGET
    since = facts.leaving_since or now
    waited = (now - since).total_seconds() - facts.grace_seconds
    if facts.leaving_since is None or waited < 0:
        return Step.RELEASE
    soon = now + timedelta(seconds=2 * SHORTENED_SECONDS)
    return Step.SHORTEN if waited > STOP_SECONDS and seen.end > soon else Step.STOP


def _as_begun(wanted: HoldInfo, seen: HoldInfo, now: datetime) -> HoldInfo:
    """Return a hold with the start that it has, once it has begun."""
    begun = wanted.start <= now and seen.start <= now
    wanted = as_counted(wanted, seen)
    return replace(wanted, start=seen.start) if begun else wanted


def as_counted(wanted: HoldInfo, seen: HoldInfo) -> HoldInfo:
    """Return a hold of whole nodes with or without a number of GPUs, as it is held."""
    if wanted.is_part or 0 not in (wanted.gpus_each, seen.gpus_each):
        return wanted
    return replace(wanted, gpus_each=seen.gpus_each, kind=seen.kind)


def covers(seen: HoldInfo, wanted: HoldInfo, *, now: datetime) -> bool:
    """Return whether a hold has the GPUs of another one, and its time from now on."""
    enough = not seen.gpus_each or 0 < wanted.gpus_each <= seen.gpus_each
    nodes = set(wanted.nodes) <= set(seen.nodes)
    begins = seen.start <= max(wanted.start, now)
    return enough and nodes and begins and wanted.end <= seen.end


def meets(one: HoldInfo, other: HoldInfo) -> bool:
    """Return whether two holds have a time in common."""
    return one.start < other.end and other.start < one.end


def strange_names(holds: Collection[str], known: Collection[str]) -> list[str]:
    """Return this site's holds that no reservation has: of a booking that was rolled
    back, or made after the backup from which the database was restored.

    >>> strange_names(["gp_a1b2_1", "gp_a1b2_2"], {"gp_a1b2_1"})
    ['gp_a1b2_2']
    """
    return sorted(set(holds) - set(known))


def most_held_gpus(hold: HoldInfo, others: Iterable[HoldInfo]) -> int:
    """Return how many GPUs of a node of a hold the other holds have at one instant of
    its time, at most. One without a number has all of them."""
    near = [one for one in others if meets(one, hold)]
    instants = {max(one.start, hold.start) for one in near}
    return max(
        (
            sum(
                one.gpus_each or hold.of_each
                for one in near
                if node in one.nodes and one.start <= at < one.end
            )
            for node in hold.nodes
            for at in instants
        ),
        default=0,
    )

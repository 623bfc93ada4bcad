"""The state of each part of the portal, for the status page. Pure.

A part whose state depends on another part that is away is not known. The start of an
outage is not stored: database and broker each have the time at which the other one was
last used.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from telemetry.protocol.sentences import Sentence, counted, sentence

LIVE_WITHIN = timedelta(seconds=5)
"""Frames come once a second."""
OLD_AFTER = timedelta(seconds=30)
"""After this time a node, or the picture of all nodes, counts as not live."""


class PartState(StrEnum):
    """How a part works; the values are states of components.css."""

    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    UNKNOWN = "unknown"


STATE_NAMES = {
    PartState.GOOD: sentence("works"),
    PartState.WARN: sentence("works with limits"),
    PartState.BAD: sentence("does not work"),
    PartState.UNKNOWN: sentence("not known"),
}
_BADNESS = (PartState.GOOD, PartState.UNKNOWN, PartState.WARN, PartState.BAD)


@dataclass(frozen=True, slots=True)
class DeliveryFacts:
    """Messages that go out by one channel."""

    delayed: int = 0
    """Messages that are tried again."""
    delayed_since: datetime | None = None
    """When the oldest of them was written."""
    sent_at: datetime | None = None
    """When a message last arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFacts:
    """The state of the portal at one instant."""

    now: datetime
    database: bool
    upgrading: bool
    """Whether a migration is not applied."""
    broker: bool
    done_at: tuple[datetime, ...]
    """When each periodic task was last done; those that are known."""
    late_since: tuple[datetime, ...]
    """Of these, the times of the late tasks."""
    stopped: bool
    """Whether no task of every second is in time."""
    some_late: bool
    frame_at: datetime | None
    """The time of the newest live frame."""
    nodes_seen_at: tuple[datetime | None, ...]
    """When each node that is not under maintenance last reported; None: never."""
    disk_short: bool
    mail: DeliveryFacts | None
    """None: the site sends no mail."""
    messages: DeliveryFacts
    """To chats and webhooks."""

    @property
    def last_seen_at(self) -> datetime | None:
        """When any node last reported; None: never."""
        return max((at for at in self.nodes_seen_at if at), default=None)


@dataclass(frozen=True, slots=True)
class PartStatus:
    """One line of the page."""

    name: Sentence
    state: PartState
    words: Sentence
    since: datetime | None = None
    """Since when it does not work; None: it works, or that is not known."""

    @property
    def state_name(self) -> Sentence:
        """The state in words."""
        return STATE_NAMES[self.state]


def parts_of(facts: StatusFacts) -> list[PartStatus]:
    """Return every part, in the order of what people notice first."""
    found = [_pages(facts), _database(facts), _broker(facts), _tasks(facts)]
    found += [_live_data(facts), _nodes(facts), _disk(facts)]
    found += _deliveries(facts)
    return found


def worst(parts: Sequence[PartStatus]) -> PartState:
    """Return the worst state."""
    return max((part.state for part in parts), key=_BADNESS.index)


def headline(parts: Sequence[PartStatus]) -> Sentence:
    """Return the state of the whole portal in one sentence."""
    broken = sum(part.state == PartState.BAD for part in parts)
    if broken:
        return counted(
            "{n} part of the portal does not work.",
            "{n} parts of the portal do not work.",
            broken,
        )
    state = worst(parts)
    if state == PartState.GOOD:
        return sentence("Everything works.")
    if state == PartState.UNKNOWN:
        return sentence("No part of the portal fails. Some parts are not known yet.")
    return sentence("The portal works, with limits.")


def _pages(facts: StatusFacts) -> PartStatus:
    name = sentence("Pages")
    if facts.upgrading:
        words = sentence("The portal is being upgraded. Some pages may fail.")
        return PartStatus(name, PartState.WARN, words)
    return PartStatus(name, PartState.GOOD, sentence("The web server answers."))


def _database(facts: StatusFacts) -> PartStatus:
    name = sentence("Bookings and changes")
    if facts.database:
        words = sentence("The database answers. Changes are saved.")
        return PartStatus(name, PartState.GOOD, words)
    words = sentence(
        "The database does not answer. Nothing can be booked or changed. What was "
        "saved is not lost, and jobs keep running."
    )
    return PartStatus(name, PartState.BAD, words, max(facts.done_at, default=None))


def _broker(facts: StatusFacts) -> PartStatus:
    name = sentence("Connection to the nodes")
    if facts.broker:
        return PartStatus(name, PartState.GOOD, sentence("The broker answers."))
    words = sentence(
        "The broker, which carries messages to the nodes, does not answer. No job "
        "starts, and no page is live. You can book, and jobs keep running."
    )
    return PartStatus(name, PartState.BAD, words, facts.last_seen_at)


def _tasks(facts: StatusFacts) -> PartStatus:
    name = sentence("Reservations and jobs")
    if not facts.broker:
        words = sentence("Not known while the broker does not answer.")
        return PartStatus(name, PartState.UNKNOWN, words)
    if facts.stopped:
        words = sentence(
            "The portal’s periodic tasks have stopped: no reservation begins, and no "
            "job starts or ends."
        )
        return PartStatus(
            name, PartState.BAD, words, max(facts.late_since, default=None)
        )
    if facts.some_late:
        words = sentence(
            "Some periodic tasks are late. Automatic actions of the portal can be "
            "delayed."
        )
        return PartStatus(
            name, PartState.WARN, words, min(facts.late_since, default=None)
        )
    words = sentence("Reservations and jobs start and end on time.")
    return PartStatus(name, PartState.GOOD, words)


def _live_data(facts: StatusFacts) -> PartStatus:
    name = sentence("Live data")
    if not facts.broker:
        words = sentence("Not known while the broker does not answer.")
        return PartStatus(name, PartState.UNKNOWN, words)
    at = facts.frame_at
    if at is None and facts.database and not facts.nodes_seen_at:
        words = sentence("No node reports yet.")
        return PartStatus(name, PartState.UNKNOWN, words)
    if at is not None and facts.now - at < LIVE_WITHIN:
        return PartStatus(name, PartState.GOOD, sentence("The board is up to date."))
    if at is not None and facts.now - at < OLD_AFTER:
        words = sentence("The board is some seconds behind.")
        return PartStatus(name, PartState.WARN, words, at)
    words = sentence("The board shows old data. Jobs keep running.")
    return PartStatus(name, PartState.BAD, words, at or facts.last_seen_at)


def _nodes(facts: StatusFacts) -> PartStatus:
    name = sentence("Nodes")
    if not facts.database:
        words = sentence("Not known while the database does not answer.")
        return PartStatus(name, PartState.UNKNOWN, words)
    if not facts.nodes_seen_at:
        words = sentence("There is no node yet.")
        return PartStatus(name, PartState.UNKNOWN, words)
    if _live_data(facts).state not in (PartState.GOOD, PartState.WARN):
        words = sentence("Not known while live data is missing.")
        return PartStatus(name, PartState.UNKNOWN, words)
    limit = facts.now - OLD_AFTER
    silent = [at for at in facts.nodes_seen_at if at is None or at < limit]
    number = len(facts.nodes_seen_at)
    if not silent:
        words = counted("{n} node reports.", "{n} nodes report.", number)
        return PartStatus(name, PartState.GOOD, words)
    words = counted(
        "{n} of {all} nodes does not report. The board shows which. Its jobs keep "
        "running unless it is switched off.",
        "{n} of {all} nodes do not report. The board shows which. Their jobs keep "
        "running unless they are switched off.",
        len(silent),
        all=number,
    )
    state = PartState.BAD if len(silent) == number else PartState.WARN
    since = min((at for at in silent if at), default=None)
    return PartStatus(name, state, words, since)


def _disk(facts: StatusFacts) -> PartStatus:
    name = sentence("Uploads and results")
    if facts.disk_short:
        words = sentence(
            "The portal’s disk is nearly full. Uploads, logs and results of jobs can "
            "fail."
        )
        return PartStatus(name, PartState.WARN, words)
    return PartStatus(name, PartState.GOOD, sentence("There is room for files."))


def _deliveries(facts: StatusFacts) -> Iterator[PartStatus]:
    if not facts.database:
        return
    if facts.mail is not None:
        yield _delivery(sentence("Mail"), facts.mail)
    yield _delivery(sentence("Messages to chats and webhooks"), facts.messages)


def _delivery(name: Sentence, facts: DeliveryFacts) -> PartStatus:
    if not facts.delayed:
        return PartStatus(name, PartState.GOOD, sentence("No message is delayed."))
    words = counted(
        "{n} message could not be delivered yet and is tried again. It is in the "
        "portal, too.",
        "{n} messages could not be delivered yet and are tried again. They are in the "
        "portal, too.",
        facts.delayed,
    )
    # One receiver that is away says nothing about the others.
    since, sent_at = facts.delayed_since, facts.sent_at
    arrived = since is not None and sent_at is not None and sent_at > since
    return PartStatus(name, PartState.WARN if arrived else PartState.BAD, words, since)

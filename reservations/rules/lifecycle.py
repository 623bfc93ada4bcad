"""The legal transitions of a Reservation. Each is one compare-and-set."""

from enum import StrEnum

from telemetry.protocol.sentences import Sentence, sentence


class State(StrEnum):
    """The state of a Reservation."""

    CONFIRMED = "confirmed"  # booked, not begun
    ACTIVE = "active"  # its Window runs
    ENDED = "ended"  # the Window is over
    RELEASED = "released"  # given back, or freed, before its end
    CANCELLED = "cancelled"  # given back before its start
    DISPLACED = "displaced"  # flex whose Gpus went to a user who had less
    REFUNDED = "refunded"  # failed by the site: Gpu lost or not clean

    @property
    def label(self) -> str:
        """Return the word on screen."""
        return _STATES[self.value]

    @classmethod
    def live(cls) -> frozenset["State"]:
        """Return the states that hold Gpus."""
        return frozenset({cls.CONFIRMED, cls.ACTIVE})

    @classmethod
    def holding(cls) -> frozenset["State"]:
        """Return the states whose Window is or was held, and is charged."""
        return frozenset({cls.CONFIRMED, cls.ACTIVE, cls.ENDED, cls.RELEASED})


class Kind(StrEnum):
    """Whether others may displace a Reservation (docs/design/fair-booking.md#rules)."""

    FIRM = "firm"
    FLEX = "flex"

    @property
    def label(self) -> str:
        """Return the word on screen."""
        return _KINDS[self.value]


_STATES: dict[str, Sentence] = {
    "confirmed": sentence("confirmed"),
    "active": sentence("active"),
    "ended": sentence("ended"),
    "released": sentence("released"),
    "cancelled": sentence("cancelled"),
    "displaced": sentence("displaced"),
    "refunded": sentence("refunded"),
}
_KINDS: dict[str, Sentence] = {"firm": sentence("firm"), "flex": sentence("flex")}

NEXT: dict[State, frozenset[State]] = {
    State.CONFIRMED: frozenset(
        {
            State.ACTIVE,
            State.CANCELLED,
            State.DISPLACED,
            State.REFUNDED,  # also a portal that was down over the whole Window
            State.ENDED,
        }
    ),
    # Back to CONFIRMED: the undo of a cancellation, within ten seconds.
    State.CANCELLED: frozenset({State.CONFIRMED}),
    # To CANCELLED: the undo of a booking for now, within ten seconds.
    State.ACTIVE: frozenset(
        {State.ENDED, State.RELEASED, State.REFUNDED, State.CANCELLED}
    ),
    State.ENDED: frozenset(),
    State.RELEASED: frozenset(),
    State.DISPLACED: frozenset(),
    State.REFUNDED: frozenset(),
}

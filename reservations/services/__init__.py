"""Every write of the first floor. Keyword-only; ``now`` is aware UTC; durable.

Locks are taken in one order everywhere: Accounts with a quota (pk order), the
User, the Gpus (pk order), the Reservations (pk order: the one that changes and
the flex in its way). A rule that says no raises a
Refusal and nothing is written.
"""

from reservations.services.booking import book, preview
from reservations.services.changing import change
from reservations.services.giving import (
    UNDO_SECONDS,
    cancel,
    release,
    undo_cancel,
)
from reservations.services.moving import move_rest
from reservations.services.notices import read_all, read_notice
from reservations.services.overstaying import set_overstay
from reservations.services.presence import check_in, check_in_by_click, keep
from reservations.services.search import find_slots, next_equal
from reservations.services.standing import Standing, standing
from reservations.services.tick import tick
from reservations.services.tokens import create_token, revoke_token
from reservations.services.undo import undo_booking, undo_until

__all__ = [
    "UNDO_SECONDS",
    "Standing",
    "book",
    "cancel",
    "change",
    "check_in",
    "check_in_by_click",
    "create_token",
    "find_slots",
    "keep",
    "move_rest",
    "next_equal",
    "preview",
    "read_all",
    "read_notice",
    "release",
    "revoke_token",
    "set_overstay",
    "standing",
    "tick",
    "undo_booking",
    "undo_cancel",
    "undo_until",
]

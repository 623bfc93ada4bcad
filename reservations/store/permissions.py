"""Who may change whose Reservation."""

from reservations.models import Reservation, User
from reservations.rules.errors import NotAllowed, NotChangeable, ReasonNeeded
from reservations.rules.gaps import is_gap
from reservations.store.calendar_queries import headed_accounts
from telemetry.protocol.sentences import sentence


def may_change(user: User, reservation: Reservation) -> bool:
    """Say whether it is the User's own, in a group they head, or they run the site."""
    return (
        reservation.user_id == user.pk
        or user.is_operator
        or reservation.membership.account_id in headed_accounts(user)
    )


def check_may_change(
    user: User, reservation: Reservation, *, act: str, reason: str
) -> None:
    """Refuse strangers; ask a head or the operator for a reason.

    Raises:
        NotAllowed: it is not theirs to change.
        NotChangeable: it holds a gap, which can only be given back.
        ReasonNeeded: it is somebody else's, and no reason was given.
    """
    if not may_change(user, reservation):
        raise NotAllowed(act=sentence("{act} someone else's reservation", act=act))
    if is_gap(reservation.start, reservation.booked_end) and act != "release":
        raise NotChangeable(state=sentence("held for a job that runs in gaps"), act=act)
    if reservation.user_id != user.pk and not reason.strip():
        raise ReasonNeeded

"""The co-users of a Reservation that changes: their limit, and their transfer."""

from collections.abc import Sequence
from datetime import datetime

from reservations.models import CoUser, Reservation, User
from reservations.notifications.text.sharing_text import CannotShare
from reservations.rules.fairness.limits import most_at_once
from reservations.rules.policy import Policy
from reservations.rules.window import Window
from reservations.store.booking_facts import holdings_of
from telemetry.protocol.sentences import sentence


def check_co_users(
    row: Reservation,
    gpus: int,
    window: Window,
    people: Sequence[User],
    *,
    policy: Policy,
) -> None:
    """Refuse to share Gpus with a person who would then use too many at once.

    Own and shared Gpus of a person together must stay within the limit of Gpus at once.
    Otherwise friends could lend each other any number.

    Raises:
        CannotShare: with the person, the numbers and the limit.
    """
    held = holdings_of([one.pk for one in people], ignoring=row.pk)
    for one in people:
        own = most_at_once(window, held.get(one.pk, ()))
        if own + gpus > policy.gpus_at_once:
            raise CannotShare(
                why=sentence(
                    "{one} would use {together} GPUs at once, {own} of them in "
                    "other bookings; the limit is {gpus_at_once}",
                    one=one,
                    together=own + gpus,
                    own=own,
                    gpus_at_once=policy.gpus_at_once,
                )
            )


def carry(old: Reservation, new: Reservation, *, now: datetime) -> None:
    """Copy the co-users to the Reservation that continues this one."""
    rows = CoUser.objects.sharing().filter(reservation=old)
    CoUser.objects.bulk_create(
        CoUser(reservation=new, user_id=user_pk, added_by_id=added_by, added_at=now)
        for user_pk, added_by in rows.values_list("user_id", "added_by_id")
    )

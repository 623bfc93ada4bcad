"""Share a Reservation with people of the same Account.

A co-user may run processes and Jobs on its Gpus. Only the owner checks in, changes and
pays. A removed co-user loses these rights: the tick of Jobs stops their Jobs with the
usual grace period, and their processes count as an intruder's from then on.
"""

from datetime import datetime

from django.db import connection, transaction

from reservations.booking.co_user_transfer import check_co_users
from reservations.models import CoUser, Membership, Notice, Reservation, User
from reservations.notifications import live
from reservations.notifications.service import notify
from reservations.notifications.text.sharing_text import MOST_CO_USERS, CannotShare
from reservations.rules.errors import NotAllowed, NotChangeable, NotFound
from reservations.rules.lifecycle import State
from reservations.rules.window import Window, whole_second
from reservations.store import ledger, locks
from reservations.store.booking_facts import site_policy
from telemetry.protocol.sentences import sentence


@transaction.atomic(durable=True)
def share(*, reservation_id: int, user: User, username: str, now: datetime) -> CoUser:
    """Let a member of the same Account use a Reservation. Idempotent.

    Raises:
        CannotShare: it is the owner, or it has the most co-users allowed.
        NotChangeable: it is over.
        NotAllowed, NotFound: not the owner, or no such member of the Account.
    """
    at = whole_second(now)
    row = _lock_shared_reservation(
        reservation_id, user, act=sentence("share someone else's reservation")
    )
    if row.state not in State.live() or row.end <= at:
        raise NotChangeable(state=_state(row), act=sentence("shared"))
    other = _member(row, username.strip())
    if other.pk == row.user_id:
        raise CannotShare(why=sentence("it is yours already"))
    sharing = CoUser.objects.sharing().filter(reservation=row)
    # This includes a person whose membership ended and was restored.
    known = CoUser.objects.filter(reservation=row, user=other, removed_at=None)
    before = known.first()
    if before is not None:
        return before
    if sharing.count() >= MOST_CO_USERS:
        raise CannotShare(
            why=sentence(
                "{most} people share it already, which is the limit",
                most=MOST_CO_USERS,
            )
        )
    check_co_users(
        row,
        row.allocations.count(),
        Window(max(row.start, at), row.end),
        [other],
        policy=site_policy(),
    )
    made = CoUser.objects.create(
        reservation=row, user=other, added_by=user, added_at=at
    )
    ledger.audit("shared", row, actor=user, now=at, co_user=other.pk)
    notify(
        user=other,
        kind=Notice.Kind.COUSER_ADDED,
        reservation=row,
        detail={"person": user.pk},
        now=at,
    )
    _publish(row)
    return made


@transaction.atomic(durable=True)
def unshare(*, reservation_id: int, user: User, co_user_id: int, now: datetime) -> bool:
    """Remove a co-user from a Reservation. False: they were not a co-user.

    Args:
        co_user_id: key of the User who may no longer use it.

    Raises:
        NotAllowed: the caller is neither the owner nor the co-user.
        NotFound: no such Reservation.
    """
    at = whole_second(now)
    row = _lock_shared_reservation(
        reservation_id,
        user,
        act=sentence("unshare someone else's reservation"),
        besides=co_user_id,
    )
    known = CoUser.objects.filter(reservation=row, user_id=co_user_id)
    removed = known.filter(removed_at=None).update(removed_at=at)
    if not removed:
        return False
    ledger.audit("unshared", row, actor=user, now=at, co_user=co_user_id)
    if user.pk != co_user_id:
        notify(
            user=User.objects.get(pk=co_user_id),
            kind=Notice.Kind.COUSER_ADDED,
            reservation=row,
            detail={"person": user.pk, "removed": True},
            now=at,
        )
    _publish(row)
    return True


def _lock_shared_reservation(
    pk: int, user: User, *, act: str, besides: int | None = None
) -> Reservation:
    """Return the locked Reservation, if this User shares it.

    The owner is locked first, as for every booking.
    """
    before = locks.load_reservation(pk)
    if user.pk not in (before.user_id, besides):
        raise NotAllowed(act=act)
    if connection.features.has_select_for_update:
        owner = User.objects.filter(pk=before.user_id)
        list(owner.select_for_update(no_key=True).values_list("pk"))
    return locks.load_reservation(pk, lock=True)


def _member(row: Reservation, username: str) -> User:
    """Return the active member of the Reservation's Account with this login."""
    account = row.membership.account
    found = (
        Membership.objects.filter(
            account=account,
            active=True,
            user__username=username,
            user__is_active=True,
        )
        .select_related("user")
        .first()
    )
    if found is None:
        raise NotFound(
            what=sentence(
                "member “{username}” of {account}", username=username, account=account
            )
        )
    return found.user


def _state(row: Reservation) -> State:
    return State.ENDED if row.state in State.live() else State(row.state)


def _publish(row: Reservation) -> None:
    """Make pages and ingest read the list of users again."""
    gpu_ids = list(row.allocations.values_list("gpu_id", flat=True))
    live.publish_reservation(row, gpu_ids=gpu_ids, policy=site_policy())

"""Find the node that a user may connect to through a reservation."""

from dataclasses import dataclass
from datetime import datetime

from placement.protocol.stream_refusal import StreamRefused
from reservations.models import Allocation, Reservation, User
from reservations.rules.errors import NotFound
from reservations.store.co_users import may_use
from telemetry.protocol.sentences import sentence


@dataclass(frozen=True, slots=True)
class AccessTarget:
    """A node on which a user holds GPUs now."""

    node: str
    reservation: int
    user_pk: int
    login: str
    unix_user: str
    """The user's name on the node; "": the portal knows none."""
    until: datetime


def access_target(
    user: User, reservation_pk: int, now: datetime, *, node_name: str = ""
) -> AccessTarget:
    """Return the node to which a reservation gives its owner and co-users access.

    By the live allocations whose window runs now, as for the device gate, so release,
    displacement, swap and extension all count.

    Args:
        user: owner or co-user. Heads and operators have no access.
        reservation_pk: of the reservation.
        now: the present.
        node_name: one of its nodes; "": the first by name.

    Raises:
        NotFound: there is no such reservation, or it is not the user's.
        StreamRefused: it has not begun, it is over, or it has no GPU on that node.
    """
    # Only these columns, because each call of a language model reads them.
    row = Reservation.objects.filter(pk=reservation_pk).only("user", "start").first()
    if row is None or not may_use(row, user.pk):
        raise NotFound(what=sentence("reservation {number}", number=reservation_pk))
    held = (
        Allocation.objects.filter(reservation=row, live=True, start__lte=now)
        .filter(end__gt=now)
        .order_by("gpu__node__name", "-end")
        .values_list("gpu__node__name", "end")
    )
    for name, end in held:
        if node_name in ("", name):
            return AccessTarget(
                node=name,
                reservation=row.pk,
                user_pk=user.pk,
                login=user.username,
                unix_user=user.unix_user,
                until=end,
            )
    raise _refusal(row, now, node_name, [name for name, _ in held])


def _refusal(
    row: Reservation, now: datetime, node_name: str, nodes: list[str]
) -> StreamRefused:
    if nodes:
        words = sentence(
            "Reservation {number} has no GPU on {node}, but on {nodes}.",
            number=row.pk,
            node=node_name,
            nodes=", ".join(sorted(set(nodes))),
        )
        return StreamRefused("access-over", words)
    if now < row.start and Reservation.objects.live().filter(pk=row.pk).exists():
        words = sentence("Reservation {number} has not begun yet.", number=row.pk)
        return StreamRefused("access-early", words)
    words = sentence("Reservation {number} is over.", number=row.pk)
    return StreamRefused("access-over", words)

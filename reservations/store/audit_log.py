"""Rows of the audit log for acts without a Reservation.

``books`` writes the acts on Reservations.
"""

from datetime import datetime

from reservations.models import AuditEntry, User

NO_REASON = (
    "booked",
    "started",
    "checked-in",
    "kept",
    "idle-warned",
    "shared",
    "unshared",
    "waiting.planned",
    "waiting.offered",
    "waiting.expired",
    "gap-taken",
)
"""Acts that free nothing. If they change a rank, the next regular run sees it."""

VERB_LENGTH, SUBJECT_LENGTH, REASON_LENGTH = 60, 80, 400


def audit_act(
    *,
    verb: str,
    subject: str,
    actor: User | None,
    now: datetime,
    reason: str = "",
    **detail: object,
) -> AuditEntry:
    """Record an act. ``actor`` None: the portal itself.

    Args:
        verb: the act, such as `alert.acknowledged`.
        subject: its object, such as `alert:17`.
    """
    return AuditEntry.objects.create(
        at=now,
        actor=actor,
        verb=verb[:VERB_LENGTH],
        subject=subject[:SUBJECT_LENGTH],
        reason=reason[:REASON_LENGTH],
        detail=detail,
    )


def something_new(seen: int) -> bool:
    """Return whether anything written since then is a reason for another run."""
    return (
        AuditEntry.objects.filter(pk__gt=seen)
        .exclude(verb__in=NO_REASON)
        .order_by()
        .exists()
    )

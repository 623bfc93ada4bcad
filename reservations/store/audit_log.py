"""A row of the audit log for acts that concern no Reservation.

Other floors above call this; a Reservation's own acts are written by `books`.
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
"""Acts that free nothing; a rank that they move counts at the next look."""

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
    """Write who did what; ``actor`` None: the portal itself.

    Args:
        verb: what, as `alert.acknowledged`.
        subject: to what, as `alert:17`.
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
    """Say whether something was written since that gives a reason to look."""
    return (
        AuditEntry.objects.filter(pk__gt=seen)
        .exclude(verb__in=NO_REASON)
        .order_by()
        .exists()
    )

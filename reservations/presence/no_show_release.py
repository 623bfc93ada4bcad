"""Check a holder in whose process was seen, or release the Gpus after a no-show."""

from collections.abc import Sequence
from datetime import datetime

from reservations.booking.release import free_unused
from reservations.models import Reservation
from reservations.presence.check_in import check_in
from reservations.presence.queries import watched_minutes
from reservations.presence.rules import observed_use
from reservations.rules.policy import Policy
from telemetry.protocol.sentences import sentence


def check_in_or_release(
    row: Reservation, gpu_ids: Sequence[int], now: datetime, policy: Policy
) -> str:
    """Check the holder in, or release the Gpus after a no-show.

    Returns:
        ``checked_in``, ``no_shows``, or "" if nothing was due.
    """
    # Handing on a running Reservation without check-in does not restart the deadline.
    since = row.watched_from or row.start
    seen = observed_use(
        watched_minutes(gpu_ids, since),
        gpu_ids,
        start=since,
        now=min(now, row.end),
        limit_seconds=policy.no_show_seconds,
    )
    if seen.holder_came:
        return "checked_in" if check_in(reservation_id=row.pk, now=now) else ""
    if row.blind_seconds != seen.blind_seconds:
        Reservation.objects.filter(pk=row.pk).update(blind_seconds=seen.blind_seconds)
    gone_at = seen.absent_at
    if not policy.release_no_shows or gone_at is None or gone_at >= row.end:
        return ""
    # A Job may have checked its holder in since the row was read.
    if not Reservation.objects.filter(pk=row.pk, checked_in_at=None).exists():
        return ""
    # As of that instant, so that a late tick writes the same as one in time.
    free_unused(
        reservation_id=row.pk, now=gone_at, reason=sentence("nobody came"), no_show=True
    )
    return "no_shows"

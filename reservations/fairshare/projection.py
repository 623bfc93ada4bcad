"""Ranks at a later instant, when bookings have become past use and have decayed."""

from datetime import datetime

from reservations.models import Reservation
from reservations.rules.fairness.fair_tree import Ranking, weight_at
from reservations.rules.policy import Policy
from reservations.rules.window import unix
from reservations.store.usage import past_usage, pending_late_gpu_seconds, rank_with


def projected_ranking(now: datetime, then: datetime, policy: Policy) -> Ranking | None:
    """Return the ranking at a later instant if no further booking were made.

    Past usage decays equally for all and so changes no rank. A booking counts in full
    until its end and decays from then on. This is what changes with time.
    """
    half_life = policy.half_life_seconds
    usage = past_usage(now, policy)
    rows = Reservation.objects.live().order_by()
    for pk, end, cost in rows.values_list("membership_id", "end", "cost_gpu_seconds"):
        weight = weight_at(unix(min(end, then)), half_life)
        usage[pk] = usage.get(pk, 0) + cost * weight
    heavy = weight_at(unix(then), half_life)
    for pk, cost in pending_late_gpu_seconds().items():
        usage[pk] = usage.get(pk, 0) + cost * heavy
    return rank_with(usage, then, policy)

"""Common parts of the calendar's API: the User, the time, the answers."""

from datetime import datetime

from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone

from reservations.models import Membership, User
from reservations.rules.calendar import Slot
from reservations.rules.decision import Decision
from reservations.rules.errors import NotFound
from reservations.rules.fairness.preemption import Displaced, deciding
from reservations.rules.lifecycle import Kind
from reservations.store.calendar_queries import iso
from reservations.web.rate_limits import check_rate
from telemetry.protocol.coded_error import error_parts
from telemetry.protocol.sentences import sentence

PREVIEWS_PER_MINUTE = 300


def signed_in(request: HttpRequest) -> User:
    """Return the signed-in User of the request."""
    user = request.user
    assert isinstance(user, User)
    return user


def own_membership(user: User, pk: int | None) -> Membership | None:
    """Return the named Membership. None: the request names none.

    Raises:
        NotFound: no such Membership of this User.
    """
    if pk is None:
        return None
    found = user.memberships.select_related("account").filter(pk=pk).first()
    if found is None:
        raise NotFound(what=sentence("membership #{pk} of yours", pk=pk))
    return found


def count_request(user: User, *, writes: bool) -> datetime:
    """Count a request against the rate limit, and return its instant."""
    now = timezone.now()
    per_minute = settings.BOOK_RATE_PER_MINUTE if writes else PREVIEWS_PER_MINUTE
    what = "book" if writes else "preview"
    check_rate(what, user_pk=user.pk, per_minute=per_minute, now=now)
    return now


def hours_of(gpu_seconds: int) -> float:
    """Return credits (weighted GPU-hours), to the thousandth."""
    return round(gpu_seconds / 3600, 3)


def slot_json(slot: Slot) -> dict[str, object]:
    """Return a free slot as the API sends it."""
    return {
        "gpu_ids": list(slot.gpu_ids),
        "start": iso(slot.start),
        "end": iso(slot.end),
        "kind": slot.kind.value,
        "displaces": slot.displaces,
        # Those that a process without a right to them uses now.
        "foreign_gpu_ids": list(slot.foreign_gpu_ids),
    }


def decision_json(decision: Decision) -> dict[str, object]:
    """Return a decision as the API sends it: kind, cost, ranks, or the refusal."""
    zone = timezone.get_current_timezone()
    refusal = decision.refusal
    why = decision.why_not_firm
    slot = decision.next_slot or (refusal.next_slot if refusal else None)
    return {
        "ok": refusal is None,
        "kind": decision.kind.value if decision.kind else None,
        "cost_credits": hours_of(decision.cost_gpu_seconds),
        # The part of the cost from peak hours. Left out if it is zero.
        **(
            {"peak_credits": hours_of(decision.peak_gpu_seconds)}
            if decision.peak_gpu_seconds
            else {}
        ),
        # Flex does not count in the quota.
        "quota_left_credits": hours_of(decision.quota_left_gpu_seconds)
        if decision.kind is Kind.FIRM
        else None,
        "rank_before": decision.rank_before,
        "rank_after": decision.rank_after,
        "of": decision.of,
        "why_not_firm": why.text(zone) if why else None,
        "taken_until": iso(decision.taken_until) if decision.taken_until else None,
        "displaces": [
            {
                # Empty if names are hidden. Then the group stands for its member.
                "user": one.flex.user or None,
                "account": one.flex.account,
                "refund_credits": hours_of(one.refund_gpu_seconds),
                "start": iso(one.flex.start),
                "end": iso(one.flex.end),
                **_deciding_levels(one),
            }
            for one in decision.displaced
        ],
        "refusal": error_parts(refusal, zone) if refusal else None,
        "next_slot": slot_json(slot) if slot else None,
        # Some of the requested GPUs, at the same time.
        "works_instead": slot_json(refusal.works_instead)
        if refusal and refusal.works_instead
        else None,
    }


def _deciding_levels(one: Displaced) -> dict[str, object]:
    """Return the two level_fs that decided: the requester's, and the owner's."""
    theirs, own = deciding(one.theirs, one.own)
    level_fs = {"own": own.level.level_fs, "their": theirs.level.level_fs}
    return {
        "of_group": not theirs.is_user,
        **{
            f"{side}_level_fs": None if value is None else float(value)
            for side, value in level_fs.items()
        },
    }

"""Common parts of the calendar's API: the User, the time, the answers."""

from datetime import datetime
from typing import Any, NotRequired, TypedDict

from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone

from reservations.models import ApiToken, Membership, User
from reservations.rules.calendar import Slot
from reservations.rules.decision import Decision
from reservations.rules.errors import NotFound
from reservations.rules.fairness.fair_tree import PathStep
from reservations.rules.fairness.preemption import Displaced, deciding
from reservations.rules.lifecycle import Kind
from reservations.store.calendar_queries import iso
from reservations.web.rate_limits import check_rate
from telemetry.protocol.coded_error import error_parts
from telemetry.protocol.sentences import sentence
from telemetry.web.answer_types import UtcInstant

PREVIEWS_PER_MINUTE = 300


class FreeSlot(TypedDict):
    """Free time of some GPUs."""

    gpu_ids: list[int]
    start: UtcInstant
    end: UtcInstant
    kind: str
    """The kind that a booking would get: firm or flex."""
    displaces: int
    """Flex reservations of others that it would take."""
    foreign_gpu_ids: list[int]
    """GPUs that a process without a right to them uses now."""


class DisplacedFlex(TypedDict):
    """A flex reservation that a booking would take."""

    user: str | None
    """Name of its holder. Null: names are hidden, and the group stands for it."""
    account: str
    """Name of its group."""
    refund_credits: float
    """Credits (weighted GPU-hours) that its holder gets back."""
    start: UtcInstant
    end: UtcInstant
    of_group: bool
    """Whether groups decided by their level_fs. Otherwise persons did."""
    own_level_fs: float | None
    """The caller's level_fs that decided. Null: it is infinite, nothing was used."""
    their_level_fs: float | None
    """The holder's."""


class BookingDecision(TypedDict):
    """What a booking would be and cost, or why it is refused."""

    ok: bool
    """Whether it would be accepted."""
    kind: str | None
    """firm or flex. Null: it is refused."""
    cost_credits: float
    """Credits: weighted GPU-hours."""
    peak_credits: NotRequired[float]
    """The part of the cost from peak hours. Missing if it is zero."""
    quota_left_credits: float | None
    """Credits that are left of the quota afterwards. Null: flex does not count."""
    rank_before: int | None
    rank_after: int | None
    of: int | None
    """Number of memberships that have a rank."""
    why_not_firm: str | None
    taken_until: UtcInstant | None
    """Until when flex may be taken. Null: it cannot be."""
    displaces: list[DisplacedFlex]
    refusal: dict[str, Any] | None
    """Code, title, detail and the members of the problem that booking would answer."""
    next_slot: FreeSlot | None
    """Another time that would work."""
    works_instead: FreeSlot | None
    """Some of the GPUs, at the same time, that would work."""


def signed_in(request: HttpRequest) -> User:
    """Return the signed-in User of the request."""
    user = request.user
    assert isinstance(user, User)
    return user


def token_of(request: HttpRequest) -> ApiToken | None:
    """Return the token that a request was sent with. None: a page sent it."""
    return getattr(request, "api_token", None)


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


def slot_json(slot: Slot) -> FreeSlot:
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


def decision_json(decision: Decision) -> BookingDecision:
    """Return a decision as the API sends it: kind, cost, ranks, or the refusal."""
    zone = timezone.get_current_timezone()
    refusal = decision.refusal
    why = decision.why_not_firm
    slot = decision.next_slot or (refusal.next_slot if refusal else None)
    told: BookingDecision = {
        "ok": refusal is None,
        "kind": decision.kind.value if decision.kind else None,
        "cost_credits": hours_of(decision.cost_gpu_seconds),
        # Flex does not count in the quota.
        "quota_left_credits": hours_of(decision.quota_left_gpu_seconds)
        if decision.kind is Kind.FIRM
        else None,
        "rank_before": decision.rank_before,
        "rank_after": decision.rank_after,
        "of": decision.of,
        "why_not_firm": why.text(zone) if why else None,
        "taken_until": iso(decision.taken_until) if decision.taken_until else None,
        "displaces": [_displaced_json(one) for one in decision.displaced],
        "refusal": error_parts(refusal, zone) if refusal else None,
        "next_slot": slot_json(slot) if slot else None,
        # Some of the requested GPUs, at the same time.
        "works_instead": slot_json(refusal.works_instead)
        if refusal and refusal.works_instead
        else None,
    }
    if decision.peak_gpu_seconds:
        told["peak_credits"] = hours_of(decision.peak_gpu_seconds)
    return told


def _displaced_json(one: Displaced) -> DisplacedFlex:
    theirs, own = deciding(one.theirs, one.own)
    return {
        # Empty if names are hidden. Then the group stands for its member.
        "user": one.flex.user or None,
        "account": one.flex.account,
        "refund_credits": hours_of(one.refund_gpu_seconds),
        "start": iso(one.flex.start),
        "end": iso(one.flex.end),
        "of_group": not theirs.is_user,
        "own_level_fs": _level_fs(own),
        "their_level_fs": _level_fs(theirs),
    }


def _level_fs(step: PathStep) -> float | None:
    value = step.level.level_fs
    return None if value is None else float(value)

"""Pages for the owner of a displaced Reservation: reason, refund, new slot."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.translation import gettext

from reservations.booking.slot_search import next_equal
from reservations.fairshare.standing_text import bar_of
from reservations.models import Allocation, Notice, Reservation, User
from reservations.notifications.queries import notices_with_text
from reservations.rules.fairness.rank_advice import used_ratio
from reservations.rules.lifecycle import State
from reservations.store.calendar_queries import iso
from telemetry.models import Gpu


@dataclass(frozen=True)
class ComparisonBar:
    """One of the two that were compared, as a bar."""

    who: str
    used: str
    left: float
    width: float
    behind: bool


def displaced(
    found: Reservation, allocations: Sequence[Allocation], user: User, now: datetime
) -> dict[str, Any]:
    """Return the Notice, both sides, where it waits again, and the next equal slot."""
    if found.state != State.DISPLACED or found.user_id != user.pk:
        return {}
    rows = list(
        Notice.objects.filter(
            user=user, reservation=found, kind=Notice.Kind.DISPLACED
        ).order_by("-pk")[:1]
    )
    return {
        "told": notices_with_text(rows, user),
        "sides": _comparison_bars(rows[0].detail) if rows else [],
        "waits_again": found.waits_again.filter(user=user).first(),
        "next": _next(found, [one.gpu_id for one in allocations], now),
    }


def _comparison_bars(detail: dict[str, Any]) -> list[ComparisonBar]:
    """Return both sides of docs/design/fair-booking.md#rule-2.

    Firm within a quota compares nobody.
    """
    if not str(detail.get("rule", "")).startswith("2"):
        return []
    own, other = gettext("You, without it"), gettext("The other side, with it")
    if detail.get("of_group"):
        own = gettext("Your group, without it")
    return [
        _comparison_bar(own, detail.get("own_level_fs")),
        _comparison_bar(other, detail.get("other_level_fs")),
    ]


def _comparison_bar(who: str, level_fs: float | None) -> ComparisonBar:
    left, width, behind = bar_of(level_fs)
    return ComparisonBar(who, f"{used_ratio(level_fs):.1f}×", left, width, behind)


def _next(
    found: Reservation, gpu_ids: list[int], now: datetime
) -> dict[str, Any] | None:
    slot = next_equal(found, gpu_ids, now=now)
    if slot is None:
        return None
    gpus = Gpu.objects.filter(pk__in=slot.gpu_ids).select_related("node")
    return {
        "slot": slot,
        "gpus": [str(gpu) for gpu in gpus.order_by("node__name", "index")],
        "body": {
            "gpu_ids": list(slot.gpu_ids),
            "start": iso(slot.start),
            "end": iso(slot.end),
            "membership": found.membership_id,
            "purpose": found.purpose,
        },
    }

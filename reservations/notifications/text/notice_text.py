"""What a User is told, in words made from stored numbers.

A new kind needs a function ``NoticeValues -> str`` in a module of this package, and one
line in `WORDS`. A kind without a line says ``detail["text"]``, or what the kind is
called.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, tzinfo
from typing import Any

from reservations.notifications.text import act_text, waitlist_text
from reservations.notifications.text.closure_text import maintenance_words
from reservations.notifications.text.membership_text import ending_words
from reservations.notifications.text.sharing_text import (
    asked_words,
    couser_words,
    offer_answered_words,
    offer_made_words,
    series_conflict_words,
)
from reservations.rules.fairness.preemption import Displaced, deciding
from reservations.rules.fairness.rank_advice import used_ratio
from reservations.rules.figures import credits_text, time_text
from reservations.rules.lifecycle import Kind
from reservations.rules.notice_values import NoticeValues, Words
from reservations.rules.overstay_terms import claimed_words
from telemetry.protocol.sentences import joined, known, sentence


def displaced_detail(one: Displaced, *, kind: Kind, by: int) -> dict[str, Any]:
    """Return what is kept of a displacement for its owner.

    Args:
        kind: of the Reservation that displaced; firm needs no comparison.
        by: its number.
    """
    theirs, own = deciding(one.theirs, one.own)
    level_fs = {"own": theirs.level.level_fs, "other": own.level.level_fs}
    return {
        "rule": "1 firm" if kind is Kind.FIRM else "2 flex",
        "by": by,
        "refund_gpu_seconds": one.refund_gpu_seconds,
        "place_before": one.place_before,
        "place_after": one.place_after,
        "of_group": not theirs.is_user,
        **{
            f"{name}_level_fs": None if value is None else float(value)
            for name, value in level_fs.items()
        },
    }


def displaced_text(
    detail: Mapping[str, Any], *, start: datetime, gpus: str, who: str, zone: tzinfo
) -> str:
    """Say what went, to whom, by which numbers, and what comes back.

    Args:
        who: the taker as the reader may see them: "Bo (vision)" or "vision".
    """
    values = {"start": time_text(start, zone), "gpus": gpus, "who": who}
    if str(detail["rule"]).startswith("1"):
        went = sentence(
            "Your flex booking {start} on {gpus} went to {who}, as firm, within quota.",
            **values,
        )
        used = ""
    else:
        went = sentence(
            "Your flex booking {start} on {gpus} went to {who}, as flex.", **values
        )
        own, other = (
            f"{used_ratio(detail[f'{name}_level_fs']):.1f}" for name in ("own", "other")
        )
        used = (
            sentence(
                "Your group has used {own} times the share, the other side {other} "
                "times.",
                own=own,
                other=other,
            )
            if detail["of_group"]
            else sentence(
                "You have used {own} times the share, the other side {other} times.",
                own=own,
                other=other,
            )
        )
    back = credits_text(detail["refund_gpu_seconds"])
    return joined([went, used, sentence("You got {back} back.", back=back)])


def _displaced(told: NoticeValues) -> str:
    if told.start is None:
        raise ValueError("a displacement is about a Reservation")
    return displaced_text(
        told.detail, start=told.start, gpus=told.gpus, who=told.who, zone=told.zone
    )


SYMBOLS: dict[str, str] = {
    "displaced": "displaced",
    "placed": "reserved",
    "planned": "clock",
    "declined": "cancelled",
    "booking_started": "running",
    "moved": "arrow-right",
    "released": "released",
    "idle_warning": "idle",
    "ending_soon": "clock",
    "overstay_claimed": "clock",
    "refunded": "refunded",
    "token_given": "key",
    "maintenance": "maintenance",
    "offer_made": "users",
    "asked": "users",
    "offer_answered": "users",
    "couser_added": "users",
    "series_conflict": "calendar",
    "course_ending": "users",
    "low_use": "chart",
    "job_started": "running",
    "job_done": "done",
    "job_failed": "failed",
    "job_warning": "alert",
    "plan_again": "plan",
    "job_held": "alert",
    "serve_down": "lost",
    "webhook_off": "link",
}
"""Symbols of the site's sprite by kind."""


WORDS: dict[str, Words] = {
    "displaced": _displaced,
    "course_ending": ending_words,
    "released": act_text.released,
    "idle_warning": act_text.idle_warning,
    "refunded": act_text.refunded,
    "token_given": act_text.token_given,
    "ending_soon": act_text.ending_soon,
    "overstay_claimed": claimed_words,
    "maintenance": maintenance_words,
    "booking_started": act_text.started,
    "moved": act_text.moved,
    "webhook_off": act_text.webhook_off,
    "trial": act_text.trial,
    "couser_added": couser_words,
    "offer_answered": offer_answered_words,
    "offer_made": offer_made_words,
    "asked": asked_words,
    "series_conflict": series_conflict_words,
    "placed": waitlist_text.placed_words,
    "planned": waitlist_text.planned_words,
    "slot_offered": waitlist_text.offered_words,
    "declined": waitlist_text.lost_words,
}


def words(kind: str, title: str, told: NoticeValues) -> str:
    """Return the sentence of one Notice.

    Args:
        title: what the kind is called, for kinds that have no words of their own.
    """
    if kind in WORDS:
        return WORDS[kind](told)
    stored = told.detail.get("text")
    return known(str(stored)) if stored else sentence("{title}.", title=title)

"""Texts about a displacement: when, by whom, both ranks, and the refund."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, tzinfo
from typing import Any

from reservations.rules.fairness.preemption import Displaced, deciding
from reservations.rules.fairness.rank_advice import used_ratio
from reservations.rules.figures import credits_text, time_text
from reservations.rules.lifecycle import Kind
from reservations.rules.notice_values import NoticeValues
from telemetry.protocol.sentences import joined, sentence


def displaced_detail(one: Displaced, *, kind: Kind, by: int) -> dict[str, Any]:
    """Return the stored detail of a displacement for its owner.

    Args:
        kind: the kind of the displacing Reservation; firm needs no comparison.
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
    """Return the text on a displacement: the time, the taker, the ranks, the refund.

    Args:
        who: the new holder as the reader may see them: "Bo (vision)" or "vision".
    """
    values = {"start": time_text(start, zone), "gpus": gpus, "who": who}
    if str(detail["rule"]).startswith("1"):
        went = sentence(
            "{who} took over your flex booking {start} on {gpus} with a firm booking "
            "within quota.",
            **values,
        )
        used = ""
    else:
        went = sentence(
            "{who} took over your flex booking {start} on {gpus} with a flex booking.",
            **values,
        )
        own, other = (
            f"{used_ratio(detail[f'{name}_level_fs']):.1f}" for name in ("own", "other")
        )
        used = (
            sentence(
                "Your group has used {own} times its share, their group {other} times.",
                own=own,
                other=other,
            )
            if detail["of_group"]
            else sentence(
                "You have used {own} times your share, the other person {other} times.",
                own=own,
                other=other,
            )
        )
    back = credits_text(detail["refund_gpu_seconds"])
    return joined([went, used, sentence("You got {back} back.", back=back)])


def displaced_notice(told: NoticeValues) -> str:
    """Return the text of the notice on a displacement."""
    if told.start is None:
        raise ValueError("a displacement is about a Reservation")
    return displaced_text(
        told.detail, start=told.start, gpus=told.gpus, who=told.who, zone=told.zone
    )

"""Does a stored decision still follow from the numbers stored with it?

See docs/design/fair-booking.md#i14.

Rule by rule, from what ``Decision.to_json`` keeps: quotas and what 7 days would
have held, the instants of the freeze, the two paths down the Fair Tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from fractions import Fraction
from typing import Any

from reservations.rules.fairness.preemption import Key, stands_above


def broken_rules(stored: Mapping[str, Any]) -> list[str]:
    """Return what does not follow; nothing: the decision stands."""
    firm = str(stored.get("rule", "")).startswith("1")
    found = []
    for quota in stored.get("quotas", ()):
        if quota["held_gpu_seconds"] > quota["quota_gpu_seconds"]:
            found.append(f"1: the quota of {quota['account']} is exceeded")
    why = stored.get("why_not_firm")
    if not firm and (
        why is None or why["would_hold_gpu_seconds"] <= why["quota_gpu_seconds"]
    ):
        found.append("2: it would have fitted as firm")
    for one in stored.get("displaced", ()):
        name = f"#{one['reservation']}"
        decided_at = datetime.fromisoformat(str(stored["decided_at"]))
        if decided_at >= datetime.fromisoformat(one["frozen_at"]):
            found.append(f"3: {name} was frozen")
        if not firm and not stands_above(_keys(one["own"]), _keys(one["theirs"])):
            found.append(f"2: {name} does not stand below")
    return found


def _keys(path: Iterable[Mapping[str, Any]]) -> list[Key]:
    return [
        (step["level_fs"] is None, Fraction(step["level_fs"] or 0), "user" in step)
        for step in path
    ]

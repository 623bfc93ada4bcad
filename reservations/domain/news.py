"""Words of the portal's own acts: what began, ended, moved or came back without you.

Each takes what was stored (``Told.detail``): instants as ISO 8601, amounts as integers.
"""

from __future__ import annotations

from reservations.domain.told import Told

NOBODY_CAME, IDLE = "nobody came", "idle"
"""Reasons of ``services/absence.py``."""


def released(told: Told) -> str:
    """Say that Gpus were given back, by whom, why, and what it cost.

    detail: reason, charged_gpu_seconds, late_gpu_seconds (may still be charged),
    person (who did it; missing: the portal), cancelled (it had not begun).
    """
    if told.detail.get("cancelled"):
        return cancelled(told)
    reason = str(told.detail.get("reason", ""))
    charged = told.hours("charged_gpu_seconds") or "nothing"
    late = told.hours("late_gpu_seconds")
    cost = f" Charged so far: {charged}."
    if late and int(told.detail["late_gpu_seconds"]):
        cost += f" Up to {late} more for the hours that nobody else takes."
    if reason == NOBODY_CAME:
        why = "was released: nobody came and no process ran on it"
    elif reason == IDLE:
        why = "was released: it stayed idle after the warning"
    else:
        by = f" by {told.who}" if told.who else ""
        why = f"was given back{by}" + (f": {reason}" if reason else "")
    return f"Your {told.booking} {why}.{cost}"


def cancelled(told: Told) -> str:
    """Say that somebody who may cancelled a booking. detail: reason, person."""
    by = f" by {told.who}" if told.who else ""
    reason = str(told.detail.get("reason", ""))
    return f"Your {told.booking} was cancelled{by}" + (
        f": {reason}." if reason else "."
    )


def idle_warning(told: Told) -> str:
    """Say until when something must run. detail: idle_seconds, release_at, keep."""
    minutes = int(told.detail["idle_seconds"]) // 60
    where = told.gpus or "Your booking"
    keep = " or you press Keep (once)" if told.detail.get("keep", True) else ""
    return (
        f"{where}: held idle for {minutes} min. Released at {told.clock('release_at')} "
        f"unless a process starts{keep}."
    )


def refunded(told: Told) -> str:
    """Say what came back. detail: reason, refund_gpu_seconds."""
    back = told.hours("refund_gpu_seconds")
    all_of_it = f"Everything came back: {back}." if back else "Everything came back."
    return (
        f"Your {told.booking} ended through a failure of the site: "
        f"{told.detail.get('reason', 'it is not known which')}. {all_of_it}"
    )


def token_given(told: Told) -> str:
    """Say what a Token is good for. detail: reason."""
    return (
        "You were given a token: one firm booking beyond the horizon limits, because "
        f"{told.detail.get('reason', 'the site failed')}. Use it in the calendar."
    )


def ending_soon(told: Told) -> str:
    """Say when it is over. detail: end_at."""
    return (
        f"Your {told.booking} ends at {told.clock('end_at')}. What still runs there is "
        "stopped; make it longer if the time after it is free."
    )


def moved(told: Told) -> str:
    """Say which Gpus took the place of which. detail: reason, gpus {old: new}."""
    pairs = told.detail.get("gpus", {})
    went = ", ".join(f"{old} to {new}" for old, new in sorted(pairs.items()))
    return f"Your {told.booking} moved from {went}: {told.detail.get('reason', '')}."


def webhook_off(told: Told) -> str:
    """Say why nothing goes to the webhook any more. detail: failures, why, gone."""
    if told.detail.get("gone"):
        why = "it answered that it is gone for good"
    else:
        why = (
            f"it took none of the last {told.detail['failures']} messages "
            f"({told.detail['why']})"
        )
    return f"Your webhook was switched off: {why}. Switch it on again in the settings."


def trial(told: Told) -> str:
    """Say that this is only a test message."""
    return "This is the test message that you sent. Notices reach you here."

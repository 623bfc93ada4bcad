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
        cost += f" Up to {late} more for hours that nobody else books."
    if reason == NOBODY_CAME:
        why = "was released, because nothing ran on it and nobody checked in"
    elif reason == IDLE:
        why = "was released, because it stayed idle after the warning"
    else:
        by = f" by {told.who}" if told.who else ""
        why = f"was returned{by}" + (f": {reason}" if reason else "")
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
    keep = " or you press “Keep (once)”" if told.detail.get("keep", True) else ""
    return (
        f"{where}: booked but idle for {minutes} min. You lose the booking at "
        f"{told.clock('release_at')} unless work starts{keep}."
    )


def refunded(told: Told) -> str:
    """Say what came back. detail: reason, refund_gpu_seconds."""
    back = told.hours("refund_gpu_seconds")
    all_of_it = (
        f"You got everything back: {back}." if back else "You got everything back."
    )
    return (
        f"Your {told.booking} was ended by a fault of the lab: "
        f"{told.detail.get('reason', 'the cause is not known')}. {all_of_it}"
    )


def token_given(told: Told) -> str:
    """Say what a Token is good for. detail: reason."""
    return (
        "You got a voucher for one firm booking at any time, because "
        f"{told.detail.get('reason', 'the lab cancelled a booking')}. Use it in the "
        "calendar."
    )


def started(told: Told) -> str:
    """Say what the holder has now, until when, and what to do. detail: end_at,
    absent_at (when it is lost unless something runs; missing: it is not)."""
    until = ""
    if told.detail.get("absent_at"):
        until = (
            " Run something or check in before "
            f"{told.clock('absent_at')}, or the GPUs are released."
        )
    where = told.gpus or "its GPUs"
    return (
        f"Your booking has started: {where} until {told.time('end_at')}. "
        f"Start a job or log in.{until}"
    )


def ending_soon(told: Told) -> str:
    """Say when it is over. detail: end_at."""
    return (
        f"Your {told.booking} ends at {told.clock('end_at')}. Jobs that still run "
        f"then are stopped. You can extend it if the GPUs are free afterwards."
    )


def moved(told: Told) -> str:
    """Say which Gpus took the place of which. detail: reason, gpus {old: new}."""
    pairs = told.detail.get("gpus", {})
    went = ", ".join(f"{old} to {new}" for old, new in sorted(pairs.items()))
    return f"Your {told.booking} moved from {went}: {told.detail.get('reason', '')}."


def webhook_off(told: Told) -> str:
    """Say why nothing goes to the webhook any more. detail: failures, why, gone."""
    if told.detail.get("gone"):
        why = "its server answered that it no longer exists"
    else:
        why = (
            f"it accepted none of the last {told.detail['failures']} messages "
            f"({told.detail['why']})"
        )
    return f"Your webhook was switched off: {why}. Switch it on again in the settings."


def trial(told: Told) -> str:
    """Say that this is only a test message."""
    return "This is the test message that you sent. Notices reach you here."

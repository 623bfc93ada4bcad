"""Texts about a booking: its start and end, moves, releases and refunds.

Each function takes the stored ``NoticeValues.detail``: instants as ISO 8601, amounts as
integers.
"""

from __future__ import annotations

from reservations.rules.notice_values import NoticeValues
from telemetry.protocol.sentences import joined, known, sentence

NOBODY_CAME, IDLE = sentence("nobody came"), sentence("idle")
"""Reasons of ``presence/no_show_release.py`` and ``presence/idle_release.py``."""


def released(told: NoticeValues) -> str:
    """Return the text on a release: by whom, why, and its cost.

    detail: reason, charged_gpu_seconds, late_gpu_seconds (may still be charged), person
    (the actor; missing: the portal), cancelled (it had not begun).
    """
    if told.detail.get("cancelled"):
        return cancelled(told)
    reason = str(told.detail.get("reason", ""))
    values = {"booking": told.booking, "who": told.who, "reason": known(reason)}
    if reason == NOBODY_CAME:
        what = sentence(
            "Your {booking} was released, because nothing ran on it and nobody checked "
            "in.",
            **values,
        )
    elif reason == IDLE:
        what = sentence(
            "Your {booking} was released, because it stayed idle after the warning.",
            **values,
        )
    elif told.who and reason:
        what = sentence("Your {booking} was returned by {who}: {reason}.", **values)
    elif told.who:
        what = sentence("Your {booking} was returned by {who}.", **values)
    elif reason:
        what = sentence("Your {booking} was returned: {reason}.", **values)
    else:
        what = sentence("Your {booking} was returned.", **values)
    charged = told.hours("charged_gpu_seconds")
    cost = (
        sentence("Charged so far: {credits}.", credits=charged)
        if charged
        else sentence("Charged so far: nothing.")
    )
    late = told.hours("late_gpu_seconds")
    more = (
        sentence("Up to {credits} more for hours that nobody else books.", credits=late)
        if late and int(told.detail["late_gpu_seconds"])
        else ""
    )
    return joined([what, cost, more])


def cancelled(told: NoticeValues) -> str:
    """Return the text on a cancellation by another person. detail: reason, person."""
    reason = str(told.detail.get("reason", ""))
    values = {"booking": told.booking, "who": told.who, "reason": known(reason)}
    if told.who and reason:
        return sentence("Your {booking} was cancelled by {who}: {reason}.", **values)
    if told.who:
        return sentence("Your {booking} was cancelled by {who}.", **values)
    if reason:
        return sentence("Your {booking} was cancelled: {reason}.", **values)
    return sentence("Your {booking} was cancelled.", **values)


def idle_warning(told: NoticeValues) -> str:
    """Say until when something must run. detail: idle_seconds, release_at, keep."""
    values = {
        "where": told.gpus or sentence("Your booking"),
        "minutes": int(told.detail["idle_seconds"]) // 60,
        "time": told.clock("release_at"),
    }
    if told.detail.get("keep", True):
        return sentence(
            "{where}: booked but idle for {minutes} min. You lose the booking at "
            "{time} unless work starts or you press “Keep (once)”.",
            **values,
        )
    return sentence(
        "{where}: booked but idle for {minutes} min. You lose the booking at {time} "
        "unless work starts.",
        **values,
    )


def unbooked_use(told: NoticeValues) -> str:
    """Say which GPUs are used without a booking. detail: where."""
    return sentence(
        "Your processes run on {where} without a booking. Anybody can book these GPUs "
        "now. Book what you use with one click on the page Alerts, or end the "
        "processes.",
        where=str(told.detail["where"]),
    )


def refunded(told: NoticeValues) -> str:
    """Return the text on a refund. detail: reason, refund_gpu_seconds."""
    back = told.hours("refund_gpu_seconds")
    reason = told.detail.get("reason", sentence("the cause is not known"))
    return joined(
        [
            sentence(
                "Your {booking} was ended by a fault of the lab: {reason}.",
                booking=told.booking,
                reason=known(str(reason)),
            ),
            sentence("You got everything back: {credits}.", credits=back)
            if back
            else sentence("You got everything back."),
        ]
    )


def voucher_given(told: NoticeValues) -> str:
    """Explain the use of a Voucher. detail: reason."""
    reason = told.detail.get("reason", sentence("the lab cancelled a booking"))
    return sentence(
        "You got a voucher for one firm booking at any time, because {reason}. Use it "
        "in the calendar.",
        reason=known(str(reason)),
    )


def started(told: NoticeValues) -> str:
    """List the holder's GPUs, their end and the next step. detail: end_at, absent_at
    (when it is lost unless something runs; missing: it is not).
    """
    began = sentence(
        "Your booking has started: {where} until {end}. Start a job or log in.",
        where=told.gpus or sentence("its GPUs"),
        end=told.time("end_at"),
    )
    if not told.detail.get("absent_at"):
        return began
    come = sentence(
        "Run something or check in before {time}, or the GPUs are released.",
        time=told.clock("absent_at"),
    )
    return joined([began, come])


def ending_soon(told: NoticeValues) -> str:
    """Say when the booking ends. detail: end_at."""
    return sentence(
        "Your {booking} ends at {end_at}. Jobs that still run then are "
        "stopped. You can extend it if the GPUs are free afterwards.",
        booking=told.booking,
        end_at=told.clock("end_at"),
    )


def gpus_moved_text(told: NoticeValues) -> str:
    """Say which Gpus replaced which. detail: reason, gpus {old: new}."""
    pairs = told.detail.get("gpus", {})
    went = [
        sentence("{old} to {new}", old=old, new=new)
        for old, new in sorted(pairs.items())
    ]
    return sentence(
        "Your {booking} moved from {went}: {reason}.",
        booking=told.booking,
        went=joined(went, by=", "),
        reason=known(str(told.detail.get("reason", ""))),
    )

"""Alerts in sentences and figures. Detail comes from nodes and is only text here."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as noop

from placement.jobs.tick.gpu_release_check import HELD_RULE
from telemetry.models import Alert
from telemetry.protocol.units import format_bytes
from telemetry.rules import broker_refusals, finding_rules

TITLES = {
    finding_rules.INTRUDER: noop("someone else’s process"),
    finding_rules.SQUATTER: noop("in use without a booking"),
    finding_rules.NO_SHOW: noop("booking not used"),
    finding_rules.IDLE_HOG: noop("booked but idle"),
    "idle warning": noop("released soon"),
    finding_rules.OVERRUN: noop("still running after the booking"),
    finding_rules.ZOMBIE_MEMORY: noop("leftover memory"),
    HELD_RULE: noop("memory held after a job"),
    finding_rules.BROKEN_WITH_BOOKINGS: noop("broken GPU with bookings"),
    finding_rules.LOST: noop("GPU lost"),
    finding_rules.SILENT: noop("no data"),
    finding_rules.MISSING: noop("missing after a restart"),
    finding_rules.CLAIMED_ELSEWHERE: noop("claimed by another node"),
    finding_rules.WEDGED: noop("driver hangs"),
    finding_rules.MISUSE: noop("misuse of the broker"),
    finding_rules.NEW_GPU: noop("new GPU"),
    finding_rules.DRIVER: noop("driver does not answer"),
    finding_rules.CHANNEL: noop("node cannot sign in"),
    finding_rules.REFUSED: noop("refused by the broker"),
    finding_rules.RIGHTS: noop("rights are missing"),
    finding_rules.CLOCK: noop("wrong clock"),
    finding_rules.XID_CRITICAL: noop("critical XID error"),
    finding_rules.XID_WARNING: noop("XID error"),
    finding_rules.ECC: noop("uncorrectable memory error"),
    finding_rules.REMAP_FAILURE: noop("row remapping failed"),
    finding_rules.REMAP_PENDING: noop("row remapping pending"),
    finding_rules.THERMAL: noop("throttled: heat"),
    finding_rules.BRAKE: noop("throttled: power brake"),
}
"""Titles by rule, in the words of the board. Links and the API use the rule's name."""

SENTENCES = {
    finding_rules.INTRUDER: noop("A process runs here that is not the holder’s."),
    finding_rules.SQUATTER: noop("A process runs on this GPU, but it is not booked."),
    finding_rules.NO_SHOW: noop(
        "The booking has started, but nothing runs and nobody checked in."
    ),
    finding_rules.IDLE_HOG: noop("The GPU is booked, but almost no work runs."),
    "idle warning": noop("The booking is released soon unless it is used or kept."),
    finding_rules.OVERRUN: noop(
        "A process of the last holder still runs after the booking ended."
    ),
    finding_rules.ZOMBIE_MEMORY: noop("Memory is in use, but no process uses it."),
    HELD_RULE: noop("A job has ended, but its memory is still in use."),
    finding_rules.BROKEN_WITH_BOOKINGS: noop("This GPU is broken and has bookings."),
    finding_rules.LOST: noop("The driver does not answer for the GPU."),
    finding_rules.SILENT: noop("No data arrives from the node."),
    finding_rules.MISSING: noop("The node no longer reports this GPU."),
    finding_rules.CLAIMED_ELSEWHERE: noop("Another node reports this GPU as its own."),
    finding_rules.WEDGED: noop(
        "The driver hangs with a process that cannot be ended. Restart the node."
    ),
    finding_rules.NEW_GPU: noop(
        "The node reports a GPU that is new. It can be booked after you "
        "make it bookable (Manage, Machines)."
    ),
    finding_rules.DRIVER: noop("The driver of the node answers for none of its GPUs."),
    finding_rules.CHANNEL: noop(
        "The node cannot sign in to the web. No job starts on it."
    ),
    finding_rules.REFUSED: noop("The broker refused a sign-in as this node."),
    finding_rules.RIGHTS: noop(
        "The driver refuses what the node’s worker asks. The worker must run as root."
    ),
    finding_rules.CLOCK: noop(
        "The node’s clock differs from the portal’s, so the node refuses "
        "orders as too old or too new."
    ),
    finding_rules.MISUSE: noop(
        "The node did something on the broker that no node should do. The "
        "portal has repaired it. Inspect the node before you trust it."
    ),
    finding_rules.XID_CRITICAL: noop(
        "The driver reported an error. Results of this GPU cannot be trusted any more."
    ),
    finding_rules.XID_WARNING: noop(
        "The driver reported an error that ended a program."
    ),
    finding_rules.ECC: noop(
        "Memory errors since the last reset could not be corrected."
    ),
    finding_rules.REMAP_FAILURE: noop("A faulty memory row could not be replaced."),
    finding_rules.REMAP_PENDING: noop(
        "The next reset of the GPU replaces a faulty memory row."
    ),
    finding_rules.THERMAL: noop("The GPU throttles itself because it is too hot."),
    finding_rules.BRAKE: noop("The power supply makes the GPU throttle."),
}


def title(rule: str) -> str:
    """Return a rule's title on pages, or its name if this table does not list it."""
    return gettext(TITLES[rule]) if rule in TITLES else rule.replace("_", " ")


CHANNEL_TROUBLE = {
    "ok": noop("The node has not called over HTTPS for three minutes."),
    "refused": noop(
        "The web refuses the node’s token: it is old, it belongs to another node, or "
        "the node is not enrolled. manage.py enroll_node --renew makes a new one."
    ),
    "down": noop("The node does not reach the web at GPUPORTAL_WEB_URL."),
    "token": noop("The file of the node’s token is missing or empty."),
    "order_key": noop("The node’s order_key.pub is missing or not this portal’s."),
}
"""Faults and remedies of a node's channel to the web, by Node.channel_state."""


def sentence(rule: str) -> str:
    """Return a rule's meaning in one sentence, or "" for an unknown rule."""
    return gettext(SENTENCES[rule]) if rule in SENTENCES else ""


def facts_of(alert: Alert, *, people: str) -> list[tuple[str, str]]:
    """Return the detail of the Alert as pairs of label and text."""
    detail: dict[str, Any] = alert.detail
    found: list[tuple[str, str]] = []
    if people:
        found.append((gettext("Running"), people))
    for xid in detail.get("xids", ()):
        times = _times(xid["count"])
        found.append(
            (
                f"XID {xid['code']}",
                gettext("%(times)s, last %(when)s")
                % {"times": times, "when": _when(xid["last_at"])},
            )
        )
    if detail.get("causes"):
        found.append((gettext("Cause"), ", ".join(detail["causes"])))
    if detail.get("reservations"):
        found.append((gettext("Reservations"), str(detail["reservations"])))
    if detail.get("next_start"):
        found.append((gettext("First booking"), _when(detail["next_start"])))
    if detail.get("last_seen_at"):
        found.append((gettext("Last data"), _when(detail["last_seen_at"])))
    if detail.get("claimed_by"):
        found.append((gettext("Claimed by"), str(detail["claimed_by"])))
    if detail.get("reason"):
        found.append((gettext("Message of the node"), str(detail["reason"])))
    if detail.get("channel"):
        cause = CHANNEL_TROUBLE.get(detail["channel"], noop("unknown"))
        found.append((gettext("Cause"), gettext(cause)))
    if detail.get("skew_seconds"):
        skew = detail["skew_seconds"]
        words = gettext("%(n)s s ahead") if skew > 0 else gettext("%(n)s s behind")
        found.append((gettext("The node’s clock"), words % {"n": abs(skew)}))
    if detail.get("refused"):
        why, used = str(detail["refused"]), str(detail.get("used", ""))
        found.append((gettext("Cause"), broker_refusals.cause(why, used)))
        found.append((gettext("Last refused"), _when(detail["refused_at"])))
        if detail.get("address"):
            found.append((gettext("From"), str(detail["address"])))
        remedy = broker_refusals.remedy(why, str(alert.place))
        found.append((gettext("What to do"), remedy))
    if detail.get("broker"):
        found.append((gettext("On the broker"), str(detail["broker"])))
    if detail.get("job"):
        found.append((gettext("Job"), f"#{detail['job']}"))
    if detail.get("memory_bytes"):
        found.append((gettext("Memory"), format_bytes(detail["memory_bytes"])))
    if alert.openings > 1:
        found.append((gettext("Came back"), _times(alert.openings - 1)))
    return found


def _times(count: int) -> str:
    if count == 1:
        return gettext("once")
    return gettext("%(n)s times") % {"n": count}


def _when(iso: str) -> str:
    at = timezone.localtime(datetime.fromisoformat(iso))
    return date_format(at, "DAY_AND_TIME_FORMAT")


def reading_rows(
    readings: list[dict[str, Any]], name: Callable[[str | None], str | None]
) -> list[dict[str, Any]]:
    """The readings that made it, for a table; `name` says who may be named."""
    return [
        {
            "at": datetime.fromtimestamp(one["at"], UTC),
            "state": one.get("state", ""),
            "util_pct": one.get("util_pct"),
            "memory_bytes": one.get("memory_used_bytes"),
            "temperature_celsius": one.get("temperature_celsius"),
            "power_watts": one.get("power_watts"),
            "throttle": [word.replace("_", " ") for word in one.get("throttle", ())],
            "people": ", ".join(
                sorted(
                    {
                        shown
                        for process in one.get("processes", ())
                        if (shown := name(process.get("user")))
                    }
                )
            ),
            "process_count": one.get("process_count"),
        }
        for one in readings
    ]

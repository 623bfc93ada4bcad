"""Alerts in sentences and figures. Detail comes from nodes and is only text here."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone

from placement.services.clearing import HELD_RULE
from telemetry.domain import refusals, rules
from telemetry.domain.units import format_bytes
from telemetry.models import Alert

TITLES = {
    rules.INTRUDER: "someone else’s process",
    rules.SQUATTER: "in use without a booking",
    rules.NO_SHOW: "booking not used",
    rules.IDLE_HOG: "booked but idle",
    "idle warning": "released soon",
    rules.OVERRUN: "still running after the booking",
    rules.ZOMBIE_MEMORY: "leftover memory",
    HELD_RULE: "memory held after a job",
    rules.BROKEN_WITH_BOOKINGS: "broken GPU with bookings",
    rules.LOST: "GPU lost",
    rules.SILENT: "no data",
    rules.MISSING: "missing after a restart",
    rules.CLAIMED_ELSEWHERE: "claimed by another node",
    rules.WEDGED: "driver hangs",
    rules.MISUSE: "misuse of the broker",
    rules.NEW_GPU: "new GPU",
    rules.DRIVER: "driver does not answer",
    rules.CHANNEL: "node cannot sign in",
    rules.REFUSED: "refused by the broker",
    rules.RIGHTS: "rights are missing",
    rules.CLOCK: "wrong clock",
    rules.XID_CRITICAL: "critical XID error",
    rules.XID_WARNING: "XID error",
    rules.ECC: "uncorrectable memory error",
    rules.REMAP_FAILURE: "row remapping failed",
    rules.REMAP_PENDING: "row remapping pending",
    rules.THERMAL: "throttled: heat",
    rules.BRAKE: "throttled: power brake",
}
"""Titles by rule, in the words of the board. Links and the API use the rule's name."""

SENTENCES = {
    rules.INTRUDER: "A process runs here that is not the holder’s.",
    rules.SQUATTER: "A process runs on this GPU, but it is not booked.",
    rules.NO_SHOW: "The booking has started, but nothing runs and nobody checked in.",
    rules.IDLE_HOG: "The GPU is booked, but almost no work runs.",
    "idle warning": "The booking is released soon unless it is used or kept.",
    rules.OVERRUN: "A process of the last holder still runs after the booking ended.",
    rules.ZOMBIE_MEMORY: "Memory is in use, but no process uses it.",
    HELD_RULE: "A job has ended, but its memory is still in use.",
    rules.BROKEN_WITH_BOOKINGS: "This GPU is broken and has bookings.",
    rules.LOST: "The driver does not answer for the GPU.",
    rules.SILENT: "No data arrives from the node.",
    rules.MISSING: "The node no longer reports this GPU.",
    rules.CLAIMED_ELSEWHERE: "Another node reports this GPU as its own.",
    rules.WEDGED: "The driver hangs with a process that cannot be ended. Restart "
    "the node.",
    rules.NEW_GPU: "The node reports a GPU that is new. It can be booked after you "
    "make it bookable (Manage, Machines).",
    rules.DRIVER: "The driver of the node answers for none of its GPUs.",
    rules.CHANNEL: "The node cannot sign in to the web. No job starts on it.",
    rules.REFUSED: "The broker refused a sign-in as this node.",
    rules.RIGHTS: "The driver refuses what the node’s worker asks. The worker must run "
    "as root.",
    rules.CLOCK: "The node’s clock differs from the portal’s, so the node refuses "
    "orders as too old or too new.",
    rules.MISUSE: "The node did something on the broker that no node should do. The "
    "portal has repaired it. Inspect the node before you trust it.",
    rules.XID_CRITICAL: "The driver reported an error. Results of this GPU cannot be "
    "trusted any more.",
    rules.XID_WARNING: "The driver reported an error that ended a program.",
    rules.ECC: "Memory errors since the last reset could not be corrected.",
    rules.REMAP_FAILURE: "A faulty memory row could not be replaced.",
    rules.REMAP_PENDING: "The next reset of the GPU replaces a faulty memory row.",
    rules.THERMAL: "The GPU throttles itself because it is too hot.",
    rules.BRAKE: "The power supply makes the GPU throttle.",
}


def title(rule: str) -> str:
    """Return a rule's title on pages, or its name if this table does not list it."""
    return TITLES.get(rule, rule.replace("_", " "))


CHANNEL_TROUBLE = {
    "ok": "The node has not called over HTTPS for three minutes.",
    "refused": "The web refuses the node’s token: it is old, it belongs to another "
    "node, or the node is not enrolled. manage.py enroll_node --renew makes a new one.",
    "down": "The node does not reach the web at GPUPORTAL_WEB_URL.",
    "token": "The file of the node’s token is missing or empty.",
    "order_key": "The node’s order_key.pub is missing or not this portal’s.",
}
"""Faults and remedies of a node's channel to the web, by Node.channel_state."""


def sentence(rule: str) -> str:
    """What a rule means, in one sentence; "" for one that this page is too old for."""
    return SENTENCES.get(rule, "")


def facts_of(alert: Alert, *, people: str) -> list[tuple[str, str]]:
    """What the Alert's detail says, as label and text."""
    detail: dict[str, Any] = alert.detail
    found: list[tuple[str, str]] = []
    if people:
        found.append(("Running", people))
    for xid in detail.get("xids", ()):
        times = "once" if xid["count"] == 1 else f"{xid['count']} times"
        found.append((f"XID {xid['code']}", f"{times}, last {_when(xid['last_at'])}"))
    if detail.get("causes"):
        found.append(("Cause", ", ".join(detail["causes"])))
    if detail.get("reservations"):
        found.append(("Reservations", str(detail["reservations"])))
    if detail.get("next_start"):
        found.append(("First booking", _when(detail["next_start"])))
    if detail.get("last_seen_at"):
        found.append(("Last data", _when(detail["last_seen_at"])))
    if detail.get("claimed_by"):
        found.append(("Claimed by", str(detail["claimed_by"])))
    if detail.get("reason"):
        found.append(("Message of the node", str(detail["reason"])))
    if detail.get("channel"):
        found.append(("Cause", CHANNEL_TROUBLE.get(detail["channel"], "unknown")))
    if detail.get("skew_seconds"):
        skew = detail["skew_seconds"]
        side = "ahead" if skew > 0 else "behind"
        found.append(("The node’s clock", f"{abs(skew)} s {side}"))
    if detail.get("refused"):
        why, used = str(detail["refused"]), str(detail.get("used", ""))
        found.append(("Cause", refusals.cause(why, used)))
        found.append(("Last refused", _when(detail["refused_at"])))
        if detail.get("address"):
            found.append(("From", str(detail["address"])))
        found.append(("What to do", refusals.remedy(why, str(alert.place))))
    if detail.get("broker"):
        found.append(("On the broker", str(detail["broker"])))
    if detail.get("job"):
        found.append(("Job", f"#{detail['job']}"))
    if detail.get("memory_bytes"):
        found.append(("Memory", format_bytes(detail["memory_bytes"])))
    if alert.openings > 1:
        found.append(("Came back", f"{alert.openings - 1} times"))
    return found


def _when(iso: str) -> str:
    at = timezone.localtime(datetime.fromisoformat(iso))
    return f"{at:%a} {at.day} {at:%b %H:%M}"


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

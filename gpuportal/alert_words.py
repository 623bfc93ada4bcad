"""Alerts in sentences and figures. Detail comes from nodes and is only text here."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone

from placement.services.clearing import HELD_RULE
from telemetry.domain import rules
from telemetry.domain.units import format_bytes
from telemetry.models import Alert

SENTENCES = {
    rules.INTRUDER: "A process of somebody else runs on a booked GPU.",
    rules.SQUATTER: "A process runs on a GPU that nobody booked.",
    rules.NO_SHOW: "The reservation runs, and nobody came.",
    rules.IDLE_HOG: "The GPU is held and computes next to nothing.",
    "idle warning": "The reservation is released soon, unless it is used or kept.",
    rules.OVERRUN: "The holder's process runs on after the reservation's end.",
    rules.ZOMBIE_MEMORY: "Memory is used, and no process shows who uses it.",
    HELD_RULE: "A job has ended, and memory of it is still held.",
    rules.BROKEN_WITH_BOOKINGS: "Somebody counts on a GPU that is broken.",
    rules.LOST: "The driver does not answer for the GPU.",
    rules.SILENT: "No sample comes from the node.",
    rules.MISSING: "The GPU was there, and the node no longer tells of it.",
    rules.CLAIMED_ELSEWHERE: "Another node says that it has this GPU.",
    rules.WEDGED: "The driver holds a process that cannot be killed: only a reboot "
    "of the node helps.",
    rules.MISUSE: "The node did something on the broker that no honest node does. It "
    "was put right; look at the node before you trust it.",
    rules.XID_CRITICAL: "The driver told of an error after which the GPU is not to "
    "be trusted.",
    rules.XID_WARNING: "The driver told of an error that ended an application.",
    rules.ECC: "Memory errors that could not be corrected, since the last reset.",
    rules.REMAP_FAILURE: "A faulty memory row could not be replaced.",
    rules.REMAP_PENDING: "A faulty memory row is replaced at the GPU's next reset.",
    rules.THERMAL: "The hardware slows the GPU down because of heat.",
    rules.BRAKE: "The power supply makes the GPU slow down.",
}


def sentence(rule: str) -> str:
    """What a rule means, in one sentence; "" for one that this page is too old for."""
    return SENTENCES.get(rule, "")


def facts_of(alert: Alert, *, people: str) -> list[tuple[str, str]]:
    """What the Alert's detail says, as label and text."""
    detail: dict[str, Any] = alert.detail
    found: list[tuple[str, str]] = []
    if people:
        found.append(("Runs there", people))
    for xid in detail.get("xids", ()):
        times = "once" if xid["count"] == 1 else f"{xid['count']} times"
        found.append((f"XID {xid['code']}", f"{times}, last {_when(xid['last_at'])}"))
    if detail.get("causes"):
        found.append(("Because of", ", ".join(detail["causes"])))
    if detail.get("reservations"):
        found.append(("Reservations", str(detail["reservations"])))
    if detail.get("next_start"):
        found.append(("First one from", _when(detail["next_start"])))
    if detail.get("last_seen_at"):
        found.append(("Last heard", _when(detail["last_seen_at"])))
    if detail.get("claimed_by"):
        found.append(("Claimed by", str(detail["claimed_by"])))
    if detail.get("reason"):
        found.append(("The node says", str(detail["reason"])))
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

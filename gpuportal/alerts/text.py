"""Alerts in sentences and figures. Their detail comes from nodes and is used only as
text."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as noop

from telemetry.models import Alert
from telemetry.protocol.sentences import joined
from telemetry.protocol.units import format_bytes
from telemetry.rules import broker_refusals
from telemetry.rules.alert_rules import alert_rules
from telemetry.web.translation import translated


def title(rule: str) -> str:
    """Return a rule's title on pages, or its name if nothing declares it."""
    known = alert_rules().get(rule)
    return translated(known.title) if known else rule.replace("_", " ")


CHANNEL_TROUBLE = {
    "ok": noop("The node has sent no request over HTTPS for three minutes."),
    "refused": noop(
        "The portal refuses the node’s token: it is old, it belongs to another node, "
        "or the node is not enrolled. Make a new one with: sh deploy/enroll --renew "
        "NAME"
    ),
    "down": noop(
        "The node cannot reach the portal at the address in its GPUPORTAL_WEB_URL."
    ),
    "token": noop("The file with the node’s token is missing or empty."),
    "order_key": noop(
        "The file order_key.pub on the node is missing or belongs to another portal."
    ),
}
"""Faults and remedies of a node's channel to the web, by Node.channel_state."""


def sentence(rule: str) -> str:
    """Return a rule's meaning and what to do about it, or "" for an unknown rule."""
    known = alert_rules().get(rule)
    return translated(joined([known.sentence, known.advice])) if known else ""


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
                % {"times": times, "when": local_instant_text(xid["last_at"])},
            )
        )
    if detail.get("causes"):
        found.append((gettext("Cause"), ", ".join(detail["causes"])))
    if detail.get("reservations"):
        found.append((gettext("Reservations"), str(detail["reservations"])))
    if detail.get("next_start"):
        found.append(
            (gettext("First booking"), local_instant_text(detail["next_start"]))
        )
    if detail.get("last_seen_at"):
        found.append((gettext("Last data"), local_instant_text(detail["last_seen_at"])))
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
        found.append(
            (gettext("Last refused"), local_instant_text(detail["refused_at"]))
        )
        if detail.get("address"):
            found.append((gettext("From"), str(detail["address"])))
        remedy = broker_refusals.remedy(why, str(alert.place))
        found.append((gettext("What to do"), remedy))
    if detail.get("broker"):
        found.append((gettext("Found on the broker"), str(detail["broker"])))
    if detail.get("job"):
        found.append((gettext("Job"), f"#{detail['job']}"))
    if detail.get("memory_bytes"):
        found.append((gettext("Memory"), format_bytes(detail["memory_bytes"])))
    if alert.openings > 1:
        found.append((gettext("Reopened"), _times(alert.openings - 1)))
    return found


def _times(count: int) -> str:
    if count == 1:
        return gettext("once")
    return gettext("%(n)s times") % {"n": count}


def local_instant_text(iso: str) -> str:
    at = timezone.localtime(datetime.fromisoformat(iso))
    return date_format(at, "DAY_AND_TIME_FORMAT")


def reading_rows(
    readings: list[dict[str, Any]], name: Callable[[str | None], str | None]
) -> list[dict[str, Any]]:
    """Return the readings that caused it, for a table. `name` returns the shown
    name."""
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

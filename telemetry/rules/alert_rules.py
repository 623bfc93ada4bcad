"""Every alert rule: its name, severity, condition, sentence and advice in one place.

A rule is declared once with ``declare``, which returns its name. The name is used in
the database, the API and the filters of pages. This module has the rules that need no
bookings. ``reservations.rules.booking_alerts`` declares those that do, and
``placement.rules.job_alerts`` those about jobs.

A rule has a condition if one look at a GPU or a node decides. The finder of that kind
of facts checks all of its rules, so a new rule needs only its declaration. If a query
decides, ``found_in`` names the function that opens and closes the alerts. See
docs/design/telemetry.md#findings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Any

from telemetry.protocol.reading import GpuReading, Throttle
from telemetry.protocol.sentences import sentence
from telemetry.protocol.trouble import TroubleState
from telemetry.rules.thresholds import JudgePolicy

MOST_SKEW_SECONDS = 10.0
"""How much a node's clock may differ from the server's."""


class Severity(StrEnum):
    """Severity of a finding."""

    INFO = "info"
    """Information."""
    WARNING = "warning"
    """An operator should look at it."""
    CRITICAL = "critical"
    """An operator has to act."""


class JobHarm(Enum):
    """The meaning of a finding for a job on the GPU."""

    NONE = auto()
    PASSING = auto()
    """The job is slower. The cause is over before a later start."""
    RISK = auto()
    """Other GPUs are preferred."""
    FAILS = auto()
    """The job ends with an error, or its numbers are wrong."""


def _at_once(_policy: Any) -> float:
    return 0.0


def _no_detail(_facts: Any) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class AlertRule:
    """One fault of a GPU or a node: when it exists, and its sentences."""

    name: str
    title: str
    """The title on pages, in the words of the board."""
    sentence: str
    severity: Severity
    condition: Callable[[Any], bool] | None = None
    """Whether ``facts`` show the cause. Pure; None: a query decides."""
    facts: type | None = None
    """The condition's argument: ``GpuReading``, ``NodeFacts`` or ``GpuUse``."""
    after_seconds: Callable[[Any], float] = _at_once
    """How long the cause must last, from the detector's policy."""
    detail: Callable[[Any], Mapping[str, Any]] = _no_detail
    """The facts that the alert keeps for the page."""
    found_in: str = ""
    """The function that opens and closes it, if there is no condition."""
    advice: str = ""
    """The remedy."""
    hardware: bool = False
    """A fault of the card, which takes longer to be over."""
    breaks: bool = False
    """The GPU is unreliable with it."""
    told_once: bool = False
    """It is closed by the opposite report, not by silence."""
    shown_to_bookers: bool = False
    """Shown to everybody who has booked the GPU. The lab admin and the person that an
    alert is about always see it; what breaks a GPU is always shown to its bookers."""
    harm: JobHarm = JobHarm.NONE


_RULES: dict[str, AlertRule] = {}
_CONDITIONS: dict[type, list[tuple[Callable[[Any], bool], AlertRule]]] = {}
"""Conditions and rules by the type of facts."""


def declare(rule: AlertRule) -> str:
    """Register a rule and return its name.

    Raises:
        ValueError: the name is taken, or neither a condition nor ``found_in`` is given.
    """
    if rule.name in _RULES:
        raise ValueError(f"two alert rules are called {rule.name!r}")
    if (rule.condition is None) == (not rule.found_in):
        raise ValueError(f"{rule.name!r} needs a condition or found_in")
    if rule.condition is not None:
        if rule.facts is None:
            raise ValueError(f"{rule.name!r} has a condition of no facts")
        _CONDITIONS.setdefault(rule.facts, []).append((rule.condition, rule))
    _RULES[rule.name] = rule
    return rule.name


def alert_rules() -> Mapping[str, AlertRule]:
    """Return every rule that is declared, by name."""
    return _RULES


def rules_about(facts: type) -> list[AlertRule]:
    """Return the rules with a condition on these facts."""
    return [rule for _, rule in _CONDITIONS.get(facts, [])]


def active_rules(facts: object) -> tuple[AlertRule, ...]:
    """Return the rules whose cause the facts show. Called for each GPU and second."""
    found = [rule for condition, rule in _CONDITIONS[type(facts)] if condition(facts)]
    return tuple(found)


def breaking_rules() -> frozenset[str]:
    """Return the rules that make a GPU unreliable."""
    return frozenset(rule.name for rule in _RULES.values() if rule.breaks)


def rules_reported_once() -> frozenset[str]:
    """Return the rules that are closed by the opposite report, not by silence."""
    return frozenset(rule.name for rule in _RULES.values() if rule.told_once)


def rules_for_bookers() -> frozenset[str]:
    """Return the rules that concern all users who have booked the GPU."""
    return frozenset(
        rule.name for rule in _RULES.values() if rule.breaks or rule.shown_to_bookers
    )


def severity_of(name: str) -> Severity:
    """Return the severity of a rule. An unknown rule is a warning."""
    return _RULES[name].severity if name in _RULES else Severity.WARNING


# --- the card's own reports -----------------------------------------------------------


def _slow_because_of_heat(reading: GpuReading) -> bool:
    throttle = reading.throttle
    if not throttle:
        return False
    if Throttle.HW_THERMAL in throttle:
        return True
    # Older drivers report only that the hardware slows the GPU down.
    return Throttle.HW_SLOWDOWN in throttle and Throttle.HW_POWER_BRAKE not in throttle


def _counter(policy: JudgePolicy) -> float:
    return policy.counter_after_seconds


XID_CRITICAL = declare(
    AlertRule(
        "critical XID",
        sentence("critical XID error"),
        sentence(
            "The driver reported an error. Results of this GPU cannot be trusted any "
            "more."
        ),
        Severity.CRITICAL,
        found_in="telemetry.inventory.xid_counts.judge_xids",
        breaks=True,
        told_once=True,
        harm=JobHarm.FAILS,
    )
)
XID_WARNING = declare(
    AlertRule(
        "XID",
        sentence("XID error"),
        sentence("The driver reported an error that ended a program."),
        Severity.WARNING,
        found_in="telemetry.inventory.xid_counts.judge_xids",
        told_once=True,
        harm=JobHarm.RISK,
    )
)
LOST = declare(
    AlertRule(
        "lost",
        sentence("GPU lost"),
        sentence("The driver does not answer for the GPU."),
        Severity.CRITICAL,
        condition=lambda reading: not reading.answers,
        facts=GpuReading,
        after_seconds=lambda policy: policy.lost_after_seconds,
        breaks=True,
    )
)
ECC = declare(
    AlertRule(
        "uncorrectable ECC",
        sentence("uncorrectable memory error"),
        sentence("Memory errors since the last reset could not be corrected."),
        Severity.CRITICAL,
        condition=lambda reading: bool(reading.ecc_uncorrected),
        facts=GpuReading,
        after_seconds=_counter,
        hardware=True,
        breaks=True,
        harm=JobHarm.FAILS,
    )
)
REMAP_FAILURE = declare(
    AlertRule(
        "row remap failed",
        sentence("row remapping failed"),
        sentence("A faulty memory row could not be replaced."),
        Severity.CRITICAL,
        condition=lambda reading: bool(reading.remap_failure),
        facts=GpuReading,
        after_seconds=_counter,
        hardware=True,
        breaks=True,
        harm=JobHarm.FAILS,
    )
)
REMAP_PENDING = declare(
    AlertRule(
        "row remap pending",
        sentence("row remapping pending"),
        sentence("The next reset of the GPU replaces a faulty memory row."),
        Severity.WARNING,
        condition=lambda reading: bool(
            reading.remap_pending or reading.retired_pages_pending
        ),
        facts=GpuReading,
        after_seconds=_counter,
        hardware=True,
        harm=JobHarm.RISK,
    )
)
THERMAL = declare(
    AlertRule(
        "thermal slowdown",
        sentence("throttled: heat"),
        sentence("The GPU throttles itself because it is too hot."),
        Severity.WARNING,
        condition=_slow_because_of_heat,
        facts=GpuReading,
        after_seconds=lambda policy: policy.thermal_after_seconds,
        hardware=True,
        harm=JobHarm.PASSING,
    )
)
BRAKE = declare(
    AlertRule(
        "power brake",
        sentence("throttled: power brake"),
        sentence("The power supply makes the GPU throttle."),
        Severity.WARNING,
        condition=lambda reading: (
            bool(reading.throttle) and Throttle.HW_POWER_BRAKE in reading.throttle
        ),
        facts=GpuReading,
        after_seconds=lambda policy: policy.brake_after_seconds,
        hardware=True,
        harm=JobHarm.PASSING,
    )
)


# --- ingest's facts about a node ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts that ingest has on a node at one instant."""

    trouble: TroubleState | None
    """The node's last report, however old; None: it reported none."""
    reason: str
    """The reason in that report."""
    told_at: float | None
    """Time of that report in Unix seconds."""
    skew_seconds: float
    """How far the node's clock is ahead of the server's."""
    misuse: str | None
    """The node's misuse of the broker."""
    driver_fault: str | None
    """Why nothing of the node's GPUs can be read."""
    driver_fault_seconds: float
    """How long the fault has lasted."""
    lost_after_seconds: float
    """How long it may last, from the policy."""


WEDGED = declare(
    AlertRule(
        "wedged driver",
        sentence("driver hangs"),
        sentence("The driver hangs with a process that cannot be ended."),
        Severity.CRITICAL,
        condition=lambda node: node.trouble is TroubleState.WEDGED,
        facts=NodeFacts,
        detail=lambda node: {"reason": node.reason, "said_at": node.told_at},
        advice=sentence("Restart the node."),
        breaks=True,
        harm=JobHarm.FAILS,
    )
)
RIGHTS = declare(
    AlertRule(
        "rights are missing",
        sentence("rights are missing"),
        sentence("The driver refuses what the node’s worker asks."),
        Severity.WARNING,
        condition=lambda node: node.trouble is TroubleState.NO_RIGHTS,
        facts=NodeFacts,
        detail=lambda node: {"reason": node.reason},
        advice=sentence("The worker must run as root."),
    )
)
CLOCK = declare(
    AlertRule(
        "clock is off",
        sentence("wrong clock"),
        sentence(
            "The node’s clock differs from the portal’s, so the node refuses "
            "commands as too old or too new."
        ),
        Severity.WARNING,
        condition=lambda node: abs(node.skew_seconds) > MOST_SKEW_SECONDS,
        facts=NodeFacts,
        detail=lambda node: {"skew_seconds": round(node.skew_seconds)},
    )
)
MISUSE = declare(
    AlertRule(
        "misuse of the broker",
        sentence("misuse of the broker"),
        sentence(
            "The node did something on the broker that no node should do. The "
            "portal has repaired it."
        ),
        Severity.CRITICAL,
        condition=lambda node: node.misuse is not None,
        facts=NodeFacts,
        detail=lambda node: {"broker": node.misuse},
        advice=sentence("Inspect the node before you trust it."),
    )
)
DRIVER = declare(
    AlertRule(
        "driver fault",
        sentence("driver does not answer"),
        sentence("The driver of the node answers for none of its GPUs."),
        Severity.CRITICAL,
        condition=lambda node: (
            node.driver_fault is not None
            and node.driver_fault_seconds >= node.lost_after_seconds
        ),
        facts=NodeFacts,
        detail=lambda node: {"reason": node.driver_fault},
        breaks=True,
    )
)


# --- rules that queries decide --------------------------------------------------------

SILENT = declare(
    AlertRule(
        "no sample",
        sentence("no data"),
        sentence("No data arrives from the node."),
        Severity.CRITICAL,
        found_in="telemetry.alerts.service.mark_silent_nodes",
        breaks=True,
        told_once=True,
    )
)
CHANNEL = declare(
    AlertRule(
        "no way to the web",
        sentence("node cannot sign in"),
        sentence("The node cannot sign in to the web. No job starts on it."),
        Severity.CRITICAL,
        found_in="telemetry.alerts.service.judge_channels",
        told_once=True,
    )
)
REFUSED = declare(
    AlertRule(
        "refused by the broker",
        sentence("refused by the broker"),
        sentence("The broker refused a sign-in as this node."),
        Severity.CRITICAL,
        found_in="telemetry.alerts.service.judge_refused",
        told_once=True,
    )
)
MISSING = declare(
    AlertRule(
        "missing after reboot",
        sentence("missing after a restart"),
        sentence("The node no longer reports this GPU."),
        Severity.CRITICAL,
        found_in="telemetry.inventory.roster.record_roster",
        breaks=True,
        told_once=True,
    )
)
CLAIMED_ELSEWHERE = declare(
    AlertRule(
        "claimed elsewhere",
        sentence("claimed by another node"),
        sentence("Another node reports this GPU as its own."),
        Severity.CRITICAL,
        found_in="telemetry.inventory.roster.record_roster",
        told_once=True,
    )
)
NEW_GPU = declare(
    AlertRule(
        "new GPU",
        sentence("new GPU"),
        sentence("The node reports a GPU that is new."),
        Severity.WARNING,
        found_in="telemetry.inventory.roster.record_roster",
        advice=sentence(
            "It can be booked after you make it bookable (Manage, Machines)."
        ),
        told_once=True,
    )
)
GATE = declare(
    AlertRule(
        "gate failed",
        sentence("device gate failed"),
        sentence(
            "The node’s device gate does not do what is set: users without a booking "
            "may be able to open its GPUs."
        ),
        Severity.CRITICAL,
        found_in="telemetry.inventory.gate_report.record_gate",
        advice=sentence("The reason is on the node’s page."),
        told_once=True,
    )
)
GATE_BYPASS = declare(
    AlertRule(
        "gate does not cover everybody",
        sentence("device gate does not cover everybody"),
        sentence(
            "The node has a device gate, and these users can become root and go past "
            "it."
        ),
        Severity.WARNING,
        found_in="telemetry.inventory.gate_report.record_gate",
        advice=sentence(
            "Remove them from the groups docker, sudo and wheel of the node, or "
            "acknowledge this alert."
        ),
        told_once=True,
    )
)

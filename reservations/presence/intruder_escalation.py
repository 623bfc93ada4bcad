"""The escalation against an intruder: its steps and its exceptions.

    observe -> notify (in the page) -> warn (on the terminal) -> stop (the process)

Each pool sets its highest step. Each step waits for its time and for the step below.
Pure: gpuportal/alerts/response.py carries it out, and the node checks again just before
it acts. See docs/design/telemetry.md#escalation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from reservations.presence.attribution import (
    NOBODY_UID,
    SYSTEM_UID_BELOW,
    HoldingInfo,
    OwnerLookup,
)
from telemetry.protocol.reading import ProcessReading
from telemetry.protocol.sentences import sentence
from telemetry.rules.persistence import STALE_SECONDS
from telemetry.rules.thresholds import JudgePolicy


class EscalationStep(StrEnum):
    """One step. The values are those of telemetry.models.Response.Step."""

    NOTIFY = "notify"
    WARN = "warn"
    STOP = "stop"


LADDER = (EscalationStep.NOTIFY, EscalationStep.WARN, EscalationStep.STOP)
REACH = {
    "observe": LADDER[:0],
    "notify": LADDER[:1],
    "warn": LADDER[:2],
    "stop": LADDER,
}
"""The steps that each setting of a pool allows."""


class EscalationExemption(StrEnum):
    """Why a process is exempt, even if the pool allows an action."""

    STALE = sentence("its newest reading is too old")
    FEW_SAMPLES = sentence("it was not seen in enough readings")
    NOT_HELD = sentence("nobody holds the GPU")
    UNATTRIBUTED = sentence("its owner is not known")
    ROOT = sentence("it belongs to root")
    SYSTEM = sentence("it belongs to a system account")
    HOLDER = sentence("it belongs to the holder of the GPU")
    JOB = sentence("it is a job of the portal, which ends with its own reservation")
    EXEMPT = sentence("it is on the whitelist")
    NO_START = sentence(
        "its start time is not known, so another process may have its PID now"
    )
    SETTLED = sentence("an admin acknowledged or snoozed the alert")


@dataclass(frozen=True, slots=True)
class Suspect:
    """One process on a Gpu that another person holds."""

    process: ProcessReading
    owner: int | str | None
    """As `OwnerLookup.of` returns it."""
    samples: int
    """Consecutive fresh samples in which it was present."""
    seconds: float
    """Watched time of these samples."""


@dataclass(frozen=True, slots=True)
class EscalationCase:
    """The facts from which a step is decided."""

    suspect: Suspect
    holding: HoldingInfo | None
    reach: str
    """The pool's setting: observe, notify, warn or stop."""
    age_seconds: float
    """Since the newest sample of the Gpu arrived."""
    stood_seconds: float
    """Since the Alert opened."""
    done: Mapping[EscalationStep, float] = field(default_factory=dict)
    """Steps that were taken against this process, with the seconds since."""
    settled: bool = False
    """Whether the operator acknowledged or snoozed the Alert."""


def exemption_of_case(
    case: EscalationCase, *, owners: OwnerLookup, policy: JudgePolicy
) -> EscalationExemption | None:
    """Return what forbids any step. None: nothing does."""
    suspect, process = case.suspect, case.suspect.process
    forbidden = (
        (not case.age_seconds <= STALE_SECONDS, EscalationExemption.STALE),
        (
            suspect.samples < max(2, policy.least_samples),
            EscalationExemption.FEW_SAMPLES,
        ),
        (case.holding is None, EscalationExemption.NOT_HELD),
        (process.uid == 0 or process.user == "root", EscalationExemption.ROOT),
        (
            suspect.owner is None or process.uid is None,
            EscalationExemption.UNATTRIBUTED,
        ),
        (
            process.uid is not None
            and (process.uid < SYSTEM_UID_BELOW or process.uid == NOBODY_UID),
            EscalationExemption.SYSTEM,
        ),
        (
            case.holding is not None and _may_be_the_holders(case.holding, suspect),
            EscalationExemption.HOLDER,
        ),
        (process.job is not None, EscalationExemption.JOB),
        (owners.exempt(process), EscalationExemption.EXEMPT),
        (process.started_at is None, EscalationExemption.NO_START),
        (case.settled, EscalationExemption.SETTLED),
    )
    return next((why for holds, why in forbidden if holds), None)


def _may_be_the_holders(holding: HoldingInfo, suspect: Suspect) -> bool:
    """Whether any sign points to the holder or a co-user. Then nothing is done."""
    signs = (suspect.owner, suspect.process.user)
    return any(holding.is_of(sign) or holding.shared_with(sign) for sign in signs)


def due_after_seconds(step: EscalationStep, policy: JudgePolicy) -> float:
    """Return the time from the start of the intrusion until a step is due."""
    return {
        EscalationStep.NOTIFY: 0.0,
        EscalationStep.WARN: policy.warn_after_seconds,
        EscalationStep.STOP: policy.stop_after_seconds,
    }[step]


def next_step(
    case: EscalationCase, *, owners: OwnerLookup, policy: JudgePolicy
) -> EscalationStep | None:
    """Return the step to take now. None: no step is due, or none is allowed.

    Steps come one at a time and none is skipped. A person whose process is stopped was
    notified and warned, and had the policy's time after the warning. The times of a
    process that started later than the Alert count from its own start.
    """
    if exemption_of_case(case, owners=owners, policy=policy) is not None:
        return None
    stood_seconds = min(case.stood_seconds, case.suspect.seconds)
    before: EscalationStep | None = None
    for step in REACH.get(case.reach, ()):
        if step in case.done:
            before = step
            continue
        due_seconds = due_after_seconds(step, policy)
        gap_seconds = 0.0
        if before is not None:
            gap_seconds = due_seconds - due_after_seconds(before, policy)
        rested = before is None or case.done[before] >= gap_seconds
        return step if stood_seconds >= due_seconds and rested else None
    return None

"""Decide whether a Plan may use a Gpu with hardware problems, and how fast it is.

The open findings of telemetry's hardware rules decide (telemetry.rules.alert_rules
explains them). A finding that would kill a Job excludes the Gpu. Other findings are
shown, and other Gpus come first. A Gpu slowed down by heat or a power brake counts with
its present clock."""

from collections.abc import Iterable
from dataclasses import dataclass

from telemetry.protocol.reading import HARM
from telemetry.protocol.sentences import sentence
from telemetry.rules.alert_rules import JobHarm, alert_rules

SLOWEST_RATIO = 0.1
"""A lower clock is a reading of an idle card, not the speed of a Job."""
HARMFUL = frozenset(word.value for word in HARM)


@dataclass(frozen=True, slots=True)
class GpuUsability:
    """The usability of a Gpu with problems."""

    unusable: str = ""
    """Why no Plan may use it."""
    troubles: tuple[str, ...] = ()
    speed_ratio: float = 1.0


WELL = GpuUsability()


def health_of(
    rules: Iterable[str],
    *,
    throttle: Iterable[str] = (),
    sm_clock_mhz: float | None = None,
    sm_clock_max_mhz: float | None = None,
    later: bool = False,
) -> GpuUsability:
    """Judge one Gpu by the rules of its open findings and what slows it down now.

    `later`: the Plan starts at another time, so passing conditions are ignored.

    >>> health_of(["uncorrectable ECC"]).unusable
    'uncorrectable ECC: a job on it would fail'
    >>> slow = health_of(
    ...     [], throttle=["hw_thermal"], sm_clock_mhz=600, sm_clock_max_mhz=1500
    ... )
    >>> slow.troubles, slow.speed_ratio
    (('slowed down to 40 % (hw thermal)',), 0.4)
    """
    known = set(rules)
    harms = [
        (rule.harm, rule.name) for rule in alert_rules().values() if rule.name in known
    ]
    deadly = [name for harm, name in harms if harm is JobHarm.FAILS]
    if deadly:
        return GpuUsability(
            unusable=sentence("{deadly}: a job on it would fail", deadly=deadly[0])
        )
    unwell = {JobHarm.RISK} if later else {JobHarm.RISK, JobHarm.PASSING}
    troubles = [name for harm, name in harms if harm in unwell]
    harm = [] if later else sorted(HARMFUL.intersection(throttle))
    ratio = 1.0
    if harm and sm_clock_mhz and sm_clock_max_mhz:
        ratio = min(1.0, max(SLOWEST_RATIO, sm_clock_mhz / sm_clock_max_mhz))
    if harm:
        words = ", ".join(word.replace("_", " ") for word in harm)
        troubles.append(
            sentence(
                "slowed down to {percent} % ({words})",
                percent=f"{100 * ratio:.0f}",
                words=words,
            )
        )
    return GpuUsability(troubles=tuple(troubles), speed_ratio=ratio)

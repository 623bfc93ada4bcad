"""The alert rules about jobs."""

from telemetry.protocol.sentences import sentence
from telemetry.rules.alert_rules import AlertRule, Severity, declare

HELD_RULE = declare(
    AlertRule(
        sentence("held after its job"),
        sentence("memory held after a job"),
        sentence("A job has ended, but its memory is still in use."),
        Severity.WARNING,
        found_in="placement.jobs.tick.gpu_release_check.update_alerts",
    )
)

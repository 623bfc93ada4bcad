"""Nodes, their Gpus, what they did minute by minute, and open findings."""

from telemetry.models.alerts import Alert, AlertQuerySet, Response, XidCount
from telemetry.models.nodes import Gpu, GpuQuerySet, Node, Pool
from telemetry.models.samples import AccountHour, HourDue, SampleHour, SampleMinute
from telemetry.models.summaries import UsageSummary
from telemetry.models.telemetry_policy import TelemetryPolicy

__all__ = [
    "AccountHour",
    "Alert",
    "AlertQuerySet",
    "Gpu",
    "GpuQuerySet",
    "HourDue",
    "Node",
    "Pool",
    "Response",
    "SampleHour",
    "SampleMinute",
    "TelemetryPolicy",
    "UsageSummary",
    "XidCount",
]

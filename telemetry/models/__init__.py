"""The rows of telemetry: nodes, Gpus, samples by minute and hour, alerts."""

from telemetry.models.alerts import Alert, AlertQuerySet, Response, XidCount
from telemetry.models.join_rows import NodeIdentity, NodeJoin
from telemetry.models.nodes import Gpu, GpuQuerySet, Node, Pool
from telemetry.models.samples import AccountHour, HourDue, SampleHour, SampleMinute
from telemetry.models.slurm_rows import SlurmCluster, SlurmGpu
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
    "NodeIdentity",
    "NodeJoin",
    "Pool",
    "Response",
    "SampleHour",
    "SampleMinute",
    "SlurmCluster",
    "SlurmGpu",
    "TelemetryPolicy",
    "UsageSummary",
    "XidCount",
]

"""Nodes, their Gpus, what they did minute by minute, and open findings."""

from telemetry.models.alerts import Alert, AlertQuerySet
from telemetry.models.nodes import Gpu, GpuQuerySet, Node, Pool
from telemetry.models.samples import SampleMinute

__all__ = [
    "Alert",
    "AlertQuerySet",
    "Gpu",
    "GpuQuerySet",
    "Node",
    "Pool",
    "SampleMinute",
]

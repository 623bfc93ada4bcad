"""The ground floor: nodes, Gpus and what they do."""

from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    """Nodes, Gpus, Samples, Alerts."""

    name = "telemetry"

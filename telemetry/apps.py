"""The ground floor: nodes, Gpus and what they do."""

from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    """Nodes, Gpus, Samples, Alerts."""

    name = "telemetry"

    def ready(self) -> None:
        """Register the checks of telemetry's settings."""
        from telemetry import checks  # noqa: F401

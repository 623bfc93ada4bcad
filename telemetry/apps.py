"""Django's configuration of telemetry: nodes, Gpus, samples and alerts."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy


class TelemetryConfig(AppConfig):
    """Nodes, Gpus, Samples, Alerts."""

    name = "telemetry"
    verbose_name = gettext_lazy("Telemetry")

    def ready(self) -> None:
        """Register the checks of telemetry's settings and translate sentences."""
        from telemetry import checks  # noqa: F401
        from telemetry.protocol.sentences import set_reader
        from telemetry.web.translation import translated

        set_reader(translated)

"""The lobby: pages that mix floors, health and the supervisor."""

from django.apps import AppConfig


class PortalConfig(AppConfig):
    """Pages that mix floors."""

    name = "gpuportal"
    verbose_name = "GPU Portal"

    def ready(self) -> None:
        """Register the checks of the site's settings."""
        from gpuportal import checks  # noqa: F401

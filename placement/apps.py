"""The second floor: model to estimate to plan to job."""

from django.apps import AppConfig


class PlacementConfig(AppConfig):
    """ModelSpecs, Plans and Jobs."""

    name = "placement"

    def ready(self) -> None:
        """Register the checks."""
        from placement import checks  # noqa: F401

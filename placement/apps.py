"""The second floor: model to estimate to plan to job."""

from django.apps import AppConfig


class PlacementConfig(AppConfig):
    """ModelSpecs, Plans and Jobs."""

    name = "placement"

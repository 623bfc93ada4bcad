"""The lobby: pages that mix floors, health and the supervisor."""

from django.apps import AppConfig


class PortalConfig(AppConfig):
    """Pages that mix floors."""

    name = "gpuportal"
    verbose_name = "GPU Portal"

"""Checks of the settings at the start."""

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register


@register()
def check_simulated_gpus(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Warn about simulated Gpus in production, which only a demo needs."""
    if settings.PRODUCTION and settings.ALLOW_SIMULATED_GPUS:
        return [
            Warning(
                "production with simulated Gpus: jobs on them get no real Gpu",
                hint="unset ALLOW_SIMULATED_GPUS",
                id="telemetry.W001",
            )
        ]
    return []


@register()
def check_broker(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Refuse a broker address that redis-py cannot read."""
    if not settings.REDIS_URL.startswith(("redis://", "rediss://", "unix://")):
        return [
            Error(
                "REDIS_URL is not an address that redis-py reads",
                hint="redis://host:6379, rediss://..., or unix:///path/to/socket",
                id="telemetry.E001",
            )
        ]
    return []

"""Checks of the settings for errors that only a running Job would show."""

from typing import Any

from django.conf import settings
from django.core.checks import Error, Tags, Warning, register

from placement.protocol.signing import PRIVATE, SSH_AUTHORITY
from telemetry import paths


@register(Tags.security, deploy=True)
def scripts_without_isolation(**_kwargs: Any) -> list[Warning]:
    """Warn if scripts run as the node worker's user."""
    if not settings.ALLOW_UNISOLATED_SCRIPTS:
        return []
    return [
        Warning(
            "ALLOW_UNISOLATED_SCRIPTS lets students' scripts run as the node "
            "worker's own user",
            hint="set a Unix user for each person and run the node worker as root",
            id="placement.W001",
        )
    ]


@register(Tags.security)
def order_key_is_private(**_kwargs: Any) -> list[Error]:
    """Refuse a signing key that others may read."""
    return _readable(PRIVATE, "with it anybody could order the nodes", "E001")


@register(Tags.security)
def ssh_authority_is_private(**_kwargs: Any) -> list[Error]:
    """Refuse a key of the certificate authority that others may read."""
    return _readable(
        SSH_AUTHORITY, "with it anybody could sign in to the nodes", "E002"
    )


def _readable(name: str, why: str, number: str) -> list[Error]:
    path = paths.secret_file(name)
    if not path.exists() or not path.stat().st_mode & 0o077:
        return []
    return [
        Error(
            f"{path} may be read by others: {why}",
            hint=f"chmod 600 {path}",
            id=f"placement.{number}",
        )
    ]

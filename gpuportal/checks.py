"""Checks of the site's settings, before the first request.

``manage.py check --deploy --database default`` runs them, and so does every unit of
``deploy/systemd`` before it starts. ``manage.py portal`` runs them too.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DatabaseError
from django.db.models import Q

from gpuportal.broker import is_unencrypted
from gpuportal.directory.directory_client import is_library_installed
from gpuportal.logs import trace_export
from gpuportal.monitoring import migrations_due
from reservations.accounts.identities.identity_source import LOOPBACK
from telemetry import paths
from telemetry.models import Node


@register(Tags.security)
def production_is_meant(**_kwargs: Any) -> list[CheckMessage]:
    """Refuse settings for development if GPUPORTAL_PRODUCTION is set."""
    if not settings.PRODUCTION:
        return []
    found: list[CheckMessage] = []
    if settings.DEBUG:
        found.append(
            Error(
                "GPUPORTAL_DEBUG shows the portal's insides to everybody",
                hint="unset GPUPORTAL_DEBUG",
                id="gpuportal.E001",
            )
        )
    if "*" in settings.ALLOWED_HOSTS:
        found.append(
            Error(
                "ALLOWED_HOSTS=* lets others choose the site's name",
                hint="list the host names of the site, separated by commas",
                id="gpuportal.E002",
            )
        )
    if settings.ALLOW_UNISOLATED_SCRIPTS:
        found.append(
            Error(
                "ALLOW_UNISOLATED_SCRIPTS is only for a machine with one user",
                hint="unset it; run node workers as root and set each Unix user",
                id="gpuportal.E003",
            )
        )
    if paths.embedded_redis_url() == settings.REDIS_URL:
        found.append(
            Warning(
                "the embedded broker serves this machine only",
                hint="set REDIS_URL before you enrol nodes on other machines",
                id="gpuportal.W001",
            )
        )
    if is_unencrypted(settings.REDIS_URL):
        found.append(
            Warning(
                "REDIS_URL sends the broker's password over the network in the open",
                hint="use rediss:// (docs/broker.md), unless the network is your own",
                id="gpuportal.W003",
            )
        )
    return found


@register(Tags.security)
def people_can_sign_in(**_kwargs: Any) -> list[CheckMessage]:
    """Refuse settings of logins that are incomplete."""
    found: list[CheckMessage] = [
        Error(problem, hint="see docs/logins.md", id="gpuportal.E008")
        for problem in settings.LOGIN_SETTINGS.problems
    ]
    if settings.LOGIN_SETTINGS.saml and find_spec("onelogin") is None:
        found.append(
            Error(
                "LOGIN=saml needs the package python3-saml, which is not installed",
                hint=".venv/bin/python -m pip install -r requirements-saml.txt",
                id="gpuportal.E011",
            )
        )
    directory = settings.LOGIN_SETTINGS.directory
    if directory and not is_library_installed():
        found.append(
            Error(
                "LOGIN=ldap needs the package python-ldap, which is not installed",
                hint="apt-get install gcc python3-dev libldap2-dev libsasl2-dev; "
                ".venv/bin/python -m pip install -r requirements-ldap.txt",
                id="gpuportal.E009",
            )
        )
    if directory and directory.plain_over_network:
        found.append(
            Warning(
                "LDAP_PLAIN_TEXT=1 sends passwords over the network in the open",
                hint="use ldaps://, or ldap:// with StartTLS, which is the default",
                id="gpuportal.W004",
            )
        )
    return found


@register(Tags.security)
def services_find_the_provider(**_kwargs: Any) -> list[CheckMessage]:
    """Refuse an OpenID provider without an address that services can reach safely."""
    if not settings.OPENID_PROVIDER:
        return []
    try:
        parts = urlsplit(settings.PORTAL_URL)
        loopback = parts.hostname in LOOPBACK and not settings.PRODUCTION
        plain = parts.scheme == "http" and loopback
        whole = bool(parts.hostname) and parts[2:] == ("", "", "")
    except ValueError:
        plain = whole = False
    if whole and (parts.scheme == "https" or plain):
        return []
    return [
        Error(
            "OPENID_PROVIDER=yes needs PORTAL_URL, the https address of the portal "
            "without a path",
            hint="PORTAL_URL=https://gpu.example.org (docs/logins.md#services)",
            id="gpuportal.E010",
        )
    ]


@register(Tags.database)
def nodes_are_fit_for_production(
    databases: Sequence[str] | None = None, **_kwargs: Any
) -> list[CheckMessage]:
    """Refuse simulated nodes, and nodes without job isolation."""
    if not settings.PRODUCTION or "default" not in (databases or ()):
        return []
    try:
        simulated = list(_names(simulated=True))
        # Without a boot id its roster has not come. It may have been seen all the same,
        # and nothing but a started portal takes the roster.
        told = ~Q(last_seen_at=None) & ~Q(boot_id="")
        open_ones = list(
            _names(simulated=False, isolation=Node.Isolation.NONE).filter(told)
        )
    except DatabaseError:
        # Before the first migrate there is no table and no node.
        return []
    found: list[CheckMessage] = []
    if simulated and not settings.ALLOW_SIMULATED_GPUS:
        found.append(
            Error(
                f"simulated nodes are enrolled: {', '.join(simulated)}",
                hint="delete them, or set ALLOW_SIMULATED_GPUS=1 for a demonstration",
                id="gpuportal.E004",
            )
        )
    if open_ones:
        found.append(
            Error(
                f"nodes without job isolation: {', '.join(open_ones)}",
                hint="run their workers as root (deploy/systemd), so that each job "
                "runs as the Unix user of its student",
                id="gpuportal.E005",
            )
        )
    return found


@register(Tags.database)
def database_can_be_upgraded(
    databases: Sequence[str] | None = None, **_kwargs: Any
) -> list[CheckMessage]:
    """Refuse to migrate a database that a version before the first release made."""
    if "default" not in (databases or ()):
        return []
    try:
        too_old = migrations_due.made_before_first_release()
    except DatabaseError:
        # It is away, and pages say so until it comes back.
        return []
    if not too_old:
        return []
    return [
        Error(
            migrations_due.TOO_OLD,
            hint=migrations_due.way_to_new_database(),
            id="gpuportal.E007",
        )
    ]


@register(Tags.database, deploy=True)
def database_is_migrated(
    databases: Sequence[str] | None = None, **_kwargs: Any
) -> list[CheckMessage]:
    """Refuse to start on a database that waits for an upgrade.

    This is a check of deployments only. ``migrate`` runs the others.
    """
    if "default" not in (databases or ()):
        return []
    try:
        if migrations_due.made_before_first_release():
            # The check above refuses it.
            return []
        waiting, unknown = migrations_due.waiting(), migrations_due.unknown()
    except DatabaseError:
        # It is away, and pages say so until it comes back.
        return []
    found: list[CheckMessage] = []
    if waiting:
        found.append(
            Error(
                f"the database waits for {len(waiting)} migrations: "
                f"{', '.join(waiting[:5])}{', ...' if len(waiting) > 5 else ''}",
                hint=f"run: {settings.MANAGE_COMMAND} migrate",
                id="gpuportal.E006",
            )
        )
    if unknown:
        found.append(
            Warning(
                f"a newer version has migrated this database: {', '.join(unknown)}",
                hint="go back to that version, or restore the backup made before it",
                id="gpuportal.W002",
            )
        )
    return found


@register(Tags.compatibility)
def traces_can_be_exported(**_kwargs: Any) -> list[CheckMessage]:
    """Warn if traces are wanted and a package is missing."""
    missing = trace_export.missing_package() if trace_export.is_wanted() else ""
    if not missing:
        return []
    return [
        Warning(
            f"OTEL_EXPORTER_OTLP_ENDPOINT asks for traces, and {missing} is missing",
            hint="install requirements-otel.txt, and restart the portal",
            id="gpuportal.W005",
        )
    ]


def _names(**which: object) -> Any:
    return (
        Node.objects.run_by_portal()
        .filter(**which)
        .order_by("name")
        .values_list("name", flat=True)
    )

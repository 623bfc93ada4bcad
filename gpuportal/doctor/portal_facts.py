"""Read the facts that the checks of the portal need."""

import shutil
import smtplib
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import redis
from django.conf import settings
from django.core.checks import WARNING, run_checks
from django.core.mail import get_connection
from django.db import DatabaseError
from django.utils import timezone

from gpuportal import ticks
from gpuportal.backup import last_backup
from gpuportal.directory import directory_client
from gpuportal.doctor.portal_diagnosis import (
    LoginState,
    NodeState,
    OpenidState,
    PortalFacts,
    SettingFault,
)
from gpuportal.monitoring import health
from gpuportal.oidc.provider_client import (
    ProviderAnswerInvalid,
    ProviderAway,
    client_of,
)
from gpuportal.openid_provider import signing_key
from gpuportal.pages import bundle
from gpuportal.saml.provider_metadata import metadata_of
from reservations.accounts.identities.queries import (
    directory,
    providers,
    saml_provider,
)
from reservations.accounts.identities.saml_settings import SamlProvider
from reservations.accounts.sign_up.queries import can_be_offered, stored_domains
from reservations.models import OpenidClient
from reservations.store.unix_logins import shared_unix_logins
from telemetry import paths
from telemetry.inventory.node_identity import identity_warnings
from telemetry.inventory.short_tokens import token_issued_at
from telemetry.models import Node

CERTIFICATE_ENDS_SOON = timedelta(days=30)
CLOCK_SECONDS = 5.0
MAIL_SECONDS = 5.0
_SHOWN_ELSEWHERE = frozenset({"gpuportal.E006", "placement.E001", "placement.E002"})
"""Checks of migrations and of secret files, which have a line already."""


def portal_facts() -> PortalFacts:
    """Ask every part of the portal once. Cost: a few requests, up to some seconds if a
    part does not answer.
    """
    state = health.check_health()
    last, now = last_backup.read_last(), time.time()
    embedded = paths.embedded_redis_url() == settings.REDIS_URL
    return PortalFacts(
        database=state.database,
        waiting=tuple(state.waiting),
        broker=state.broker,
        broker_user=_broker_user() if state.broker else "",
        broker_embedded=embedded,
        late=tuple(sorted(state.late)),
        clock_synchronized=clock_synchronized(),
        disk_free_bytes=state.disk_free_bytes,
        disk_short=not state.disk_enough,
        folder=str(settings.VAR_DIR),
        readable=readable_by_others(paths.secret_file("")),
        settings=tuple(_setting_faults()) if state.database else (),
        production=settings.PRODUCTION,
        mail=_mail(),
        logins=tuple(_logins()),
        openid=_openid(migrated=state.migrated),
        backup_failure=last.failure,
        backup_age_seconds=None if last.made_at is None else now - last.made_at,
        backup_late=last.made_at is not None
        and now - last.made_at > last_backup.LATE_SECONDS,
        verified_age_seconds=None
        if last.verified_at is None
        else now - last.verified_at,
        bundled=_bundled(),
        nodes=tuple(_nodes(timezone.now())) if state.migrated else (),
        manage_command=settings.MANAGE_COMMAND,
        sign_up_domains=len(stored_domains()) if state.migrated else 0,
        sign_up_possible=can_be_offered(),
        shared_logins=shared_unix_logins() if state.migrated else {},
    )


def readable_by_others(folder: Path) -> tuple[str, ...]:
    """Return the files of a folder that group or others may read."""
    if not folder.is_dir() or not folder.stat().st_mode & 0o077:
        return ()
    files = sorted(path for path in folder.iterdir() if path.is_file())
    found = [str(path) for path in files if path.stat().st_mode & 0o077]
    return tuple(found)


def clock_synchronized() -> bool | None:
    """Return whether the kernel's clock is synchronized; None: systemd does not say."""
    program = shutil.which("timedatectl")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "show", "--property=NTPSynchronized", "--value"],
            capture_output=True,
            text=True,
            timeout=CLOCK_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"yes": True, "no": False}.get(done.stdout.strip())


def _broker_user() -> str:
    try:
        name = ticks.broker().acl_whoami()
    except redis.RedisError:
        return ""
    return name.decode() if isinstance(name, bytes) else str(name)


def _setting_faults() -> Iterator[SettingFault]:
    found = run_checks(
        include_deployment_checks=settings.PRODUCTION, databases=["default"]
    )
    for message in found:
        number = message.id or ""
        if (
            message.level < WARNING
            or message.is_silenced()
            or number in _SHOWN_ELSEWHERE
        ):
            continue
        yield SettingFault(
            number=number, fact=str(message.msg), fix=str(message.hint or "")
        )


def _mail() -> str | None:
    if not settings.MAIL_CONFIGURED:
        return None
    try:
        with get_connection(timeout=MAIL_SECONDS):
            return ""
    except (OSError, smtplib.SMTPException) as error:
        return f"the mail server does not answer: {error}"


def _logins() -> Iterator[LoginState]:
    for provider in providers():
        fault = ""
        try:
            client_of(provider).configuration()
        except ProviderAway as error:
            fault = f"the provider does not answer: {error}"
        except ProviderAnswerInvalid as error:
            fault = f"the answer of the provider is not valid: {error}"
        yield LoginState(name=provider.name, address=provider.issuer, fault=fault)
    saml = saml_provider()
    if saml is not None:
        yield _saml_login(saml, timezone.now())
    found = directory()
    if found is None:
        return
    fault = answer = fix = ""
    try:
        answer = directory_client.look(found)
    except directory_client.DirectoryAway as error:
        fault = f"the directory does not answer: {error}"
    except directory_client.DirectoryAnswerInvalid as error:
        fault = f"people cannot sign in: {error}"
        fix = "Check the variables that begin with LDAP_ (docs/logins.md)."
    yield LoginState(
        name=found.name,
        address=" ".join(found.urls),
        fault=fault,
        answer=answer,
        fix=fix,
    )


def _saml_login(saml: SamlProvider, now: datetime) -> LoginState:
    state = LoginState(name=saml.name, address=saml.metadata, fault="")
    try:
        ends_at = metadata_of(saml).ends_at
    except ProviderAway as error:
        return replace(state, fault=f"the provider does not answer: {error}")
    except ProviderAnswerInvalid as error:
        return replace(state, fault=f"the answer of the provider is not valid: {error}")
    ends = f"its certificate ends {ends_at:%Y-%m-%d}"
    if ends_at - now < CERTIFICATE_ENDS_SOON:
        fix = "Ask the provider for its new metadata, and put them into SAML_METADATA."
        return replace(state, fault=ends, fix=fix)
    return replace(state, answer=f"its metadata are valid, and {ends}")


def _openid(*, migrated: bool) -> OpenidState | None:
    if not settings.OPENID_PROVIDER:
        return None
    fault = ""
    try:
        signing_key.public_keys()
    except (signing_key.SigningKeyInvalid, OSError) as error:
        fault = str(error)
    services = OpenidClient.objects.filter(enabled=True).count() if migrated else 0
    return OpenidState(fault=fault, services=services)


def _bundled() -> bool:
    if settings.PRODUCTION:
        return (Path(settings.STATIC_ROOT) / "bundle").is_dir()
    return bool(bundle.current())


def _age_seconds(since: datetime | None, now: datetime) -> float | None:
    return None if since is None else (now - since).total_seconds()


def _nodes(now: datetime) -> Iterator[NodeState]:
    broken = (Node.GateState.FAILED, Node.GateState.UNAVAILABLE)
    try:
        rows = list(Node.objects.run_by_portal())
    except DatabaseError:
        return
    for node in rows:
        seen, state = node.last_seen_at, node.channel_state
        well = state in ("", Node.Channel.OK)
        silent_seconds = _age_seconds(seen, now)
        yield NodeState(
            name=node.name,
            silent_seconds=silent_seconds,
            silent=silent_seconds is None
            or silent_seconds > health.NODE_SILENT_SECONDS,
            maintenance=node.maintenance,
            driver=node.driver_version,
            channel="" if well else node.channel_detail or str(state),
            gate=node.gate_reason or "its gate failed"
            if node.gate_mode != Node.GateMode.OPEN and node.gate_state in broken
            else "",
            warnings=tuple(identity_warnings(node, now)),
            token_age_seconds=_age_seconds(token_issued_at(node), now),
        )

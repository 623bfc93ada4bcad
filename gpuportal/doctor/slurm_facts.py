"""Read the facts that the checks of a Slurm cluster need."""

import os
import pwd
from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from django.conf import settings
from django.db.models import Count

from gpuportal.doctor.slurm_diagnosis import SlurmBooking, SlurmFacts, SlurmReading
from reservations.engines.queries import is_reconciled, to_reconcile
from reservations.models import EngineHold, User
from reservations.rules.engine_names import hold_name, is_hold_name
from telemetry.models import Node, SlurmCluster
from telemetry.rules.slurm_cards import card_of_type
from telemetry.slurm.gpu_reservations import why_whole
from telemetry.slurm.slurm_commands import SlurmCommands
from telemetry.slurm.slurm_output import SlurmFailure
from telemetry.slurm.slurm_records import SlurmReservation

MOST_SHARED = 20


def slurm_facts(now: datetime) -> SlurmFacts:
    """Ask Slurm once, with requests that change nothing.

    Raises:
        SlurmFailure: Slurm's commands are missing, or cannot be run.
    """
    commands = SlurmCommands(conf=settings.SLURM_CONF, folder=settings.SLURM_FOLDER)
    version = commands.version()
    user = _our_user()
    common = {
        "cluster": settings.SLURM_CLUSTER,
        "version": version,
        "user": user,
        "user_id": os.geteuid(),
        "reading": _reading(now),
        "booking": _booking(now),
        "shared_users": _shared_users(),
        "manage_command": settings.MANAGE_COMMAND,
    }
    try:
        commands.ping()
        config = commands.config()
        nodes = commands.nodes(version)
        commands.jobs()
        strange = _strange_holds(commands.reservations(version))
        may_reserve = commands.may_reserve()
    except SlurmFailure as error:
        return SlurmFacts(**common, failure=str(error))
    with_gpus = [node for node in nodes if any(one.count for one in node.gpus)]
    kinds: Counter[str] = Counter()
    for node in nodes:
        for one in node.gpus:
            kinds[one.kind] += one.count
    return SlurmFacts(
        **common,
        config=config,
        strange_holds=strange,
        gpus=dict(kinds),
        unknown_types=tuple(
            sorted(
                kind
                for kind in filter(None, kinds)
                if card_of_type(kind, settings.SLURM_CARDS) is None
            )
        ),
        gpu_nodes=len(with_gpus),
        whole_nodes={
            node.name: because
            for node in with_gpus
            if (because := why_whole(node, version, config)) is not None
        },
        may_reserve=may_reserve,
        admin_level=_admin_level(commands, config, user),
    )


def _strange_holds(found: Iterable[SlurmReservation]) -> tuple[str, ...]:
    """Return the reservations of a portal that this database does not know."""
    names = {one.name for one in found if is_hold_name(one.name)}
    known = {hold_name(settings.SLURM_SITE, pk) for pk in to_reconcile()}
    return tuple(sorted(names - known))


def _our_user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _admin_level(commands: SlurmCommands, config: dict[str, str], user: str) -> str:
    if not config.get("AccountingStorageType", "").endswith("/slurmdbd"):
        return ""
    try:
        return commands.admin_level(user)
    except SlurmFailure:
        return ""


def _reading(now: datetime) -> SlurmReading | None:
    found = SlurmCluster.objects.filter(name=settings.SLURM_CLUSTER).first()
    if found is None:
        return None
    return SlurmReading(
        age_seconds=_age_seconds(found.read_at, now),
        failure=found.failure,
        skipped=tuple((str(node), str(why)) for node, why in found.skipped),
        imports=settings.SLURM_IMPORT,
        import_age_seconds=_age_seconds(found.imported_at, now),
        import_failure=found.import_failure,
    )


def _booking(now: datetime) -> SlurmBooking | None:
    if not is_reconciled():
        return None
    holds = EngineHold.objects.filter(gone_at=None)
    failed = holds.exclude(failure="").values_list("pk", "failure")[:MOST_SHARED]
    agent = Node.objects.in_service().filter(name=settings.SLURM_AGENT).first()
    return SlurmBooking(
        held=holds.filter(confirmed_at__isnull=False).count(),
        failures=tuple((hold_name(settings.SLURM_SITE, pk), why) for pk, why in failed),
        agent=settings.SLURM_AGENT,
        agent_age_seconds=_age_seconds(agent.last_seen_at, now) if agent else None,
        agent_isolates=agent is not None and agent.isolation != Node.Isolation.NONE,
    )


def _age_seconds(at: datetime | None, now: datetime) -> float | None:
    return None if at is None else (now - at).total_seconds()


def _shared_users() -> dict[str, tuple[str, ...]]:
    """Return the Unix users that several people have, with their logins."""
    rows = User.objects.exclude(unix_user="").order_by().values("unix_user")
    shared = list(
        rows.annotate(people=Count("pk"))
        .filter(people__gt=1)
        .values_list("unix_user", flat=True)[:MOST_SHARED]
    )
    found: dict[str, list[str]] = {}
    people = User.objects.filter(unix_user__in=shared).order_by("username")
    for name, login in people.values_list("unix_user", "username"):
        found.setdefault(name, []).append(login)
    return {name: tuple(logins) for name, logins in sorted(found.items())}

"""The holders of the GPUs that Slurm gives out, for the board.

A Unix user of Slurm is shown as the portal's person who has it, if there is exactly
one. Otherwise its name is shown, because `User.unix_user` is not unique.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings

from reservations.models import User
from reservations.rules.engine_names import job_of
from telemetry.models import SlurmCluster, SlurmGpu
from telemetry.rules.slurm_use import SlurmUse

HELD = frozenset({SlurmUse.BUSY, SlurmUse.RESERVED})


@dataclass(frozen=True, slots=True)
class SlurmPerson:
    """A Unix user of Slurm, and the portal's person behind it."""

    name: str
    """The person's name, or that of the Unix user; "" if Slurm does not say."""
    user_pk: int | None = None


@dataclass(frozen=True, slots=True)
class SlurmHolding:
    """The use of one GPU by Slurm."""

    held: bool
    """Whether a job or a reservation has it, also if its node does not answer."""
    person: SlurmPerson
    account: str
    job_id: int | None
    portal_job: int | None
    """The Job of this portal that Slurm runs here. None: another program or portal."""
    reservation: str
    until: datetime | None
    next_at: datetime | None
    next_person: SlurmPerson
    reason: str


@dataclass(frozen=True, slots=True)
class SlurmSilence:
    """A cluster that does not answer."""

    cluster: str
    since: datetime


@dataclass(frozen=True, slots=True)
class SlurmBoard:
    """All GPUs of Slurm, by primary key, and the cluster if it does not answer."""

    holdings: Mapping[int, SlurmHolding]
    silent: tuple[SlurmSilence, ...] = ()

    @property
    def people(self) -> frozenset[int]:
        """Return the portal's people among holders and next holders."""
        shown = (
            person.user_pk
            for one in self.holdings.values()
            for person in (one.person, one.next_person)
        )
        return frozenset(pk for pk in shown if pk is not None)


NO_SLURM = SlurmBoard({})


def load_slurm() -> SlurmBoard:
    """Read all clusters: one query without Slurm, three with it."""
    clusters = list(SlurmCluster.objects.all())
    if not clusters:
        return NO_SLURM
    rows = list(SlurmGpu.objects.filter(gpu__retired=False))
    people = people_by_unix_user(
        {name for row in rows for name in (row.unix_user, row.next_user)}
    )
    return SlurmBoard(
        holdings={row.pk: _holding(row, people) for row in rows},
        silent=tuple(
            SlurmSilence(one.name, one.failing_since)
            for one in clusters
            if one.failing_since is not None and one.name == settings.SLURM_CLUSTER
        ),
    )


def _holding(row: SlurmGpu, people: Mapping[str, SlurmPerson]) -> SlurmHolding:
    return SlurmHolding(
        held=row.use in HELD or row.job_id is not None,
        person=people.get(row.unix_user) or SlurmPerson(row.unix_user),
        account=row.account,
        job_id=row.job_id,
        portal_job=job_of(settings.SLURM_SITE, row.reservation, row.job_name),
        reservation=row.reservation,
        until=row.until,
        next_at=row.next_at,
        next_person=people.get(row.next_user) or SlurmPerson(row.next_user),
        reason=row.reason,
    )


def people_by_unix_user(names: Iterable[str]) -> dict[str, SlurmPerson]:
    """Return the people with these Unix users. A name that several people have is left
    out."""
    found: dict[str, list[SlurmPerson]] = {}
    rows = User.objects.filter(unix_user__in=[name for name in names if name])
    for pk, unix_user, display, login in rows.values_list(
        "pk", "unix_user", "display_name", "username"
    ):
        found.setdefault(unix_user, []).append(SlurmPerson(display or login, pk))
    return {name: people[0] for name, people in found.items() if len(people) == 1}

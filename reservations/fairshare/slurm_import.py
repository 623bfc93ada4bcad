"""Charges for what people used in Slurm, so that Fair Tree counts it.

Each run of a job that is over becomes one ledger row of kind IMPORT, at its end. The
row names the run, and the database accepts each run once. So an import may be repeated
or overlap another one. A run for which nobody pays is left out, and a later import
looks at it again.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.db import IntegrityError, transaction

from reservations.fairshare.slurm_charges import (
    SlurmCharge,
    SlurmPayer,
    charge_of,
    source_of,
)
from reservations.models import EngineHold, LedgerEntry, Membership, User
from reservations.rules.engine_names import reservation_of
from telemetry.models import Pool
from telemetry.slurm.sacct_usage import SlurmRun
from telemetry.slurm.service import class_of
from telemetry.slurm.slurm_commands import SlurmCommands

ROWS_AT_ONCE = 500
"""Rows of one transaction: fewer than ``store.usage.UNSETTLED_ROWS``."""


@dataclass(slots=True)
class SlurmImport:
    """What one import did."""

    added: int = 0
    known: int = 0
    """Runs that an earlier import has added."""
    running: int = 0
    """Runs that are not over."""
    booked: int = 0
    """Runs in a reservation of the portal, which pays for them."""
    gpu_seconds: int = 0
    """Weighted, of the added rows."""
    left_out: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Runs by Unix user, account and reason."""
    invalid_lines: int = 0
    """Lines of `sacct` that cannot be read."""
    first_invalid: str = ""

    @property
    def failure(self) -> str:
        """What was not read, in one line; "": everything was read."""
        if not self.invalid_lines:
            return ""
        return (
            f"lines that cannot be read: {self.invalid_lines}, "
            f"the first is {self.first_invalid}"
        )


def days_before(now: datetime, days: int) -> Iterator[tuple[datetime, datetime]]:
    """Yield the last days until now, the oldest first, as (start, end).

    >>> list(days_before(datetime(2026, 3, 2, 12), 1))
    [(datetime.datetime(2026, 3, 1, 12, 0), datetime.datetime(2026, 3, 2, 12, 0))]
    """
    for number in range(days, 0, -1):
        end = now - timedelta(days=number - 1)
        yield end - timedelta(days=1), end


def import_day(
    commands: SlurmCommands,
    start: datetime,
    end: datetime,
    *,
    now: datetime,
    done: SlurmImport,
) -> None:
    """Ask `sacct` for one day, and add the charges of the runs that ended in it.

    A run that lasted several days is in the output of each. It counts on the day of its
    end. One that is not over counts on the last day. What cannot be read is left out
    and counted in `done`.

    Raises:
        SlurmFailure: Slurm does not answer.
    """
    found = commands.readable_runs(start, end)
    done.invalid_lines += found.invalid
    done.first_invalid = done.first_invalid or found.first_invalid
    first, last = start.timestamp(), end.timestamp()
    runs = (
        run
        for run in found.runs
        if (end >= now if run.end is None or run.end > last else run.end > first)
    )
    import_runs(runs, now=now, done=done)


def import_runs(
    runs: Iterable[SlurmRun], *, now: datetime, done: SlurmImport | None = None
) -> SlurmImport:
    """Add a charge for each run that is over and has none yet.

    Args:
        done: what earlier parts of the same import did. It is added to.
    """
    done = done or SlurmImport()
    over: dict[str, SlurmRun] = {}
    for run in runs:
        if run.end is None or run.end > now.timestamp():
            done.running += 1
        else:
            over[source_of(run)] = run
    booked = _booked(over.values())
    done.booked += len(booked)
    over = {source: run for source, run in over.items() if source not in booked}
    weights = _weights(over.values())
    payers = _payers({run.user for run in over.values()})
    sources = sorted(over)
    for first in range(0, len(sources), ROWS_AT_ONCE):
        part = sources[first : first + ROWS_AT_ONCE]
        known = _known(part)
        done.known += len(known)
        charges = []
        for source in part:
            if source in known:
                continue
            run = over[source]
            found = charge_of(run, payers.get(run.user), weights)
            if isinstance(found, str):
                done.left_out[run.user, run.account, found] += 1
            elif found.gpu_seconds:
                charges.append(found)
        _add(charges, done)
    return done


def _add(charges: Collection[SlurmCharge], done: SlurmImport) -> None:
    while True:
        try:
            _write(charges)
            break
        except IntegrityError:
            # Another import has added some of them since.
            known = _known([one.source for one in charges])
            if not known:
                raise
        done.known += len(known)
        charges = [one for one in charges if one.source not in known]
    done.added += len(charges)
    done.gpu_seconds += sum(one.gpu_seconds for one in charges)


@transaction.atomic(durable=True)
def _write(charges: Iterable[SlurmCharge]) -> None:
    LedgerEntry.objects.bulk_create(
        LedgerEntry(
            membership_id=one.membership_pk,
            kind=LedgerEntry.Kind.IMPORT,
            gpu_seconds=one.gpu_seconds,
            at=datetime.fromtimestamp(one.at, UTC),
            reason=one.reason,
            source=one.source,
        )
        for one in charges
    )


def _known(sources: Collection[str]) -> set[str]:
    rows = LedgerEntry.objects.filter(source__in=sources).order_by()
    return set(rows.values_list("source", flat=True))


def _booked(runs: Iterable[SlurmRun]) -> set[str]:
    """Return the names of the runs in reservations of the portal.

    A booking pays for its whole time, so that its runs are not charged again.
    """
    inside = {
        source_of(run): pk
        for run in runs
        if (pk := reservation_of(settings.SLURM_SITE, run.reservation)) is not None
    }
    held = EngineHold.objects.filter(pk__in=set(inside.values()))
    ours = set(held.values_list("pk", flat=True))
    return {source for source, pk in inside.items() if pk in ours}


def _weights(runs: Iterable[SlurmRun]) -> dict[str, int]:
    """Return the weights of Slurm's GPUs, by Slurm's name of their type."""
    classes = {
        class_of(kind, run.cluster): kind
        for run in runs
        for kind in ("", *(kind for kind, _count in run.kinds))
    }
    pools = Pool.objects.filter(gpu_class__in=classes).order_by()
    return {
        classes[name]: weight
        for name, weight in pools.values_list("gpu_class", "weight")
    }


def _payers(unix_users: set[str]) -> dict[str, list[SlurmPayer]]:
    """Return the Memberships of the people with these Unix users.

    A Unix user that several people have is left out.
    """
    people: dict[str, set[int]] = {}
    for pk, name in User.objects.filter(unix_user__in=unix_users - {""}).values_list(
        "pk", "unix_user"
    ):
        people.setdefault(name, set()).add(pk)
    owners = {pks.pop(): name for name, pks in people.items() if len(pks) == 1}
    found: dict[str, list[SlurmPayer]] = {name: [] for name in owners.values()}
    rows = Membership.objects.filter(user__in=owners).order_by("pk")
    for pk, user, account, active in rows.values_list(
        "pk", "user_id", "account__name", "active"
    ):
        found[owners[user]].append(SlurmPayer(pk, account, active))
    return found

"""Charges for what people used in Slurm, so that Fair Tree counts it.

Each run of a job that is over becomes one ledger row of kind IMPORT, at its end. The
row names the run, and the database accepts each run once. So an import may be repeated
or overlap another one. A run for which nobody pays is left out, and a later import
looks at it again.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from django.db import transaction

from reservations.fairshare.slurm_charges import (
    SlurmCharge,
    SlurmPayer,
    charge_of,
    source_of,
)
from reservations.models import LedgerEntry, Membership, User
from telemetry.models import Pool
from telemetry.slurm.sacct_usage import SlurmRun
from telemetry.slurm.service import class_of

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
    gpu_seconds: int = 0
    """Weighted, of the added rows."""
    left_out: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Runs by Unix user, account and reason."""


def import_runs(runs: Iterable[SlurmRun], *, now: datetime) -> SlurmImport:
    """Add a charge for each run that is over and has none yet."""
    done = SlurmImport()
    over: dict[str, SlurmRun] = {}
    for run in runs:
        if run.end is None or run.end > now.timestamp():
            done.running += 1
        else:
            over[source_of(run)] = run
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


@transaction.atomic(durable=True)
def _add(charges: Collection[SlurmCharge], done: SlurmImport) -> None:
    LedgerEntry.objects.bulk_create(
        (
            LedgerEntry(
                membership_id=one.membership_pk,
                kind=LedgerEntry.Kind.IMPORT,
                gpu_seconds=one.gpu_seconds,
                at=datetime.fromtimestamp(one.at, UTC),
                reason=one.reason,
                source=one.source,
            )
            for one in charges
        ),
        # Another import may have added it since.
        ignore_conflicts=True,
    )
    done.added += len(charges)
    done.gpu_seconds += sum(one.gpu_seconds for one in charges)


def _known(sources: Collection[str]) -> set[str]:
    rows = LedgerEntry.objects.filter(source__in=sources).order_by()
    return set(rows.values_list("source", flat=True))


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

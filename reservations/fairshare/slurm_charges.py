"""The charge for one run of a job in Slurm. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from telemetry.protocol.sentences import Sentence, sentence
from telemetry.slurm.sacct_usage import SlurmRun

UNKNOWN_USER = "no person, or several, has this Unix user"
NO_GROUP = "the person is in no group"
SEVERAL_GROUPS = "the person is in several groups, and none has the account's name"


@dataclass(frozen=True, slots=True)
class SlurmPayer:
    """A Membership that may pay for a person's runs."""

    membership_pk: int
    account: str
    """Name of its Account."""
    active: bool


@dataclass(frozen=True, slots=True)
class SlurmCharge:
    """What one run costs, and who pays."""

    source: str
    membership_pk: int
    gpu_seconds: int
    """Weighted."""
    at: int
    """Unix seconds: when the run was over."""
    reason: Sentence


def source_of(run: SlurmRun) -> str:
    """Return the name of a run. A requeued job has one run for each start.

    >>> source_of(SlurmRun("lab", 7, 900, 1000, 1600, 600, "ada", "vision", 2))
    'slurm:lab:7:900:1000'
    """
    return f"slurm:{run.cluster[:40]}:{run.job_id}:{run.submitted}:{run.start}"


def payer_of(run: SlurmRun, payers: Sequence[SlurmPayer]) -> SlurmPayer | str:
    """Return the Membership that pays for a run, or why there is none.

    The group with the name of the Slurm account comes first, also if the person has
    left it. Otherwise it is the person's only group.
    """
    named = [one for one in payers if one.account.casefold() == run.account.casefold()]
    if named:
        return max(named, key=lambda one: (one.active, one.membership_pk))
    active = [one for one in payers if one.active]
    if len(active) == 1:
        return active[0]
    return SEVERAL_GROUPS if active else NO_GROUP


def charge_of(
    run: SlurmRun, payers: Sequence[SlurmPayer] | None, weights: Mapping[str, int]
) -> SlurmCharge | str:
    """Return the charge for a run that is over, or why nobody pays.

    Time in which the job was suspended is free, as in Slurm's own usage.

    Args:
        payers: the Memberships of the person. None: the person is not known.
        weights: of the GPUs, by Slurm's name of their type. Others weigh 1.
    """
    assert run.end is not None, "it still runs"
    if payers is None:
        return UNKNOWN_USER
    payer = payer_of(run, payers)
    if isinstance(payer, str):
        return payer
    typed = sum(count for _kind, count in run.kinds)
    rate = sum(weights.get(kind, 1) * count for kind, count in run.kinds)
    rate += max(run.gpus - typed, 0) * weights.get("", 1)
    return SlurmCharge(
        source=source_of(run),
        membership_pk=payer.membership_pk,
        gpu_seconds=run.elapsed_seconds * rate,
        at=run.end,
        reason=sentence(
            "Slurm {cluster}: job {job}", cluster=run.cluster, job=run.job_id
        ),
    )

"""GPU time of Slurm's jobs, from what `sacct` printed.

Source of the fields: sacct(1). With ``--duplicates`` a job that was requeued has one
line for each of its runs, so a run is identified by cluster, job, submission and start.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from telemetry.slurm.gres import read_tres_gpus, read_tres_kinds
from telemetry.slurm.slurm_output import MOST_SECONDS, SlurmOutputInvalid

FIELDS = (
    *("Cluster", "JobIDRaw", "Submit", "Start", "End"),
    *("ElapsedRaw", "User", "Account", "AllocTRES", "Reservation"),
)
_UNKNOWN = frozenset({"", "Unknown", "None"})


@dataclass(frozen=True, slots=True)
class SlurmRun:
    """One run of a job with GPUs. Times are Unix seconds."""

    cluster: str
    job_id: int
    submitted: int
    start: int
    end: int | None
    """None: it still runs."""
    elapsed_seconds: int
    """Without the time in which it was suspended."""
    user: str
    account: str
    gpus: int
    kinds: tuple[tuple[str, int], ...] = ()
    """Types of its GPUs, and how many of each, if Slurm names types."""
    reservation: str = ""
    """The reservation in which it ran; "": none."""


@dataclass(frozen=True, slots=True)
class SlurmUsage:
    """What one user had under one account."""

    account: str
    user: str
    runs: int
    gpu_seconds: int


@dataclass(slots=True)
class SacctReading:
    """What `sacct` printed, without the lines that cannot be read."""

    runs: list[SlurmRun] = field(default_factory=list)
    invalid: int = 0
    """Lines of jobs with an invalid number."""
    first_invalid: str = ""
    """What is wrong with the first of them."""


def read_sacct(lines: Iterable[bytes]) -> list[SlurmRun]:
    """Read what `read_sacct_lines` reads, and refuse a line that cannot be read.

    Raises:
        SlurmOutputInvalid: a line of a job has an invalid number.
    """
    found = read_sacct_lines(lines)
    if found.invalid:
        raise SlurmOutputInvalid(found.first_invalid)
    return found.runs


def read_sacct_lines(lines: Iterable[bytes]) -> SacctReading:
    """Read what ``sacct --parsable2 --noheader --allocations`` printed with `FIELDS`
    and ``SLURM_TIME_FORMAT=%s``: the runs that had GPUs. Banners are left out.

    The output may have any length. A run takes 600 bytes of memory.
    """
    found = SacctReading()
    for data in lines:
        line = data.decode("utf-8", errors="replace").rstrip("\r\n")
        fields = line.split("|")
        if len(fields) != len(FIELDS):
            continue
        *numbers, user, account, tres, reservation = fields
        cluster, job_id, submit, start, end, elapsed = numbers
        gpus = read_tres_gpus(tres)
        if not gpus or start in _UNKNOWN:
            continue
        try:
            run = SlurmRun(
                cluster=cluster,
                job_id=_number(job_id, line),
                submitted=_number(submit, line),
                start=_number(start, line),
                end=None if end in _UNKNOWN else _number(end, line),
                elapsed_seconds=_number(elapsed, line),
                user=user,
                account=account,
                gpus=gpus,
                kinds=read_tres_kinds(tres),
                reservation=reservation,
            )
        except SlurmOutputInvalid as error:
            found.invalid += 1
            found.first_invalid = found.first_invalid or str(error)
            continue
        found.runs.append(run)
    return found


def sum_usage(runs: Iterable[SlurmRun], *, start: int, end: int) -> list[SlurmUsage]:
    """Return the GPU time in [start, end), Unix seconds, largest first.

    Suspended time is not counted. Where it lies in a run is not known, so a run that
    begins before the window may count up to that much more.
    """
    totals: dict[tuple[str, str], tuple[int, int]] = {}
    for run in set(runs):
        until = end if run.end is None else min(run.end, end)
        seconds = min(until - max(run.start, start), run.elapsed_seconds)
        if seconds <= 0:
            continue
        key = (run.account, run.user)
        count, total = totals.get(key, (0, 0))
        totals[key] = (count + 1, total + seconds * run.gpus)
    found = [SlurmUsage(*key, *value) for key, value in totals.items()]
    return sorted(found, key=lambda one: (-one.gpu_seconds, one.account, one.user))


def _number(text: str, line: str) -> int:
    if not text.isdecimal() or len(text) > 15 or int(text) > MOST_SECONDS * 1000:
        raise SlurmOutputInvalid(f"sacct: no number {text[:30]!r} in {line[:120]!r}")
    return int(text)

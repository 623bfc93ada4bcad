"""Ask Slurm by its own commands.

Only the commands about one reservation change anything in Slurm. All commands run with
a fixed environment: no locale, UTC, times in Unix seconds, and none of the variables by
which a user changes what they print.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from telemetry.slurm import placed_jobs
from telemetry.slurm.placed_jobs import PlacedJob, read_placed_jobs
from telemetry.slurm.sacct_usage import (
    FIELDS,
    SacctReading,
    SlurmRun,
    read_sacct,
    read_sacct_lines,
)
from telemetry.slurm.slurm_output import MOST_BYTES, SlurmFailure, SlurmOutputInvalid
from telemetry.slurm.slurm_records import (
    SlurmJob,
    SlurmNode,
    SlurmReservation,
    read_jobs,
    read_nodes,
    read_reservation_lines,
    read_reservations,
)
from telemetry.slurm.slurm_refusals import SlurmAnswer, SlurmRefusal, answer_of

TIMEOUT_SECONDS = 10.0
PING_SECONDS = 5.0
"""A controller whose machine does not answer must not occupy a worker for long."""
MOST_LINE_BYTES = 64 * 2**10
SACCT_SECONDS = 120.0
"""slurmdbd may read a month of jobs."""
NO_RESERVATION = "gpuportal_check"
"""Nothing makes a reservation of this name."""
SCONTROL_JSON = (23, 2)
"""From this version on `scontrol` prints JSON."""

_VERSION = re.compile(r"\b(\d{2})\.(\d{2})(?:\.(\d+))?")
_SETTING = re.compile(r"^(\w+)\s*= ?(.*)$")


class SlurmSilent(SlurmFailure):
    """No controller answers."""


class SlurmNotInstalled(SlurmFailure):
    """A command of Slurm or its slurm.conf is not on this machine."""


@dataclass(frozen=True, slots=True)
class SlurmVersion:
    """A version of Slurm: 22.05.8."""

    year: int
    month: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.year}.{self.month:02}.{self.patch}"

    def since(self, year: int, month: int, patch: int = 0) -> bool:
        """Return whether it is that version or a later one."""
        return (self.year, self.month, self.patch) >= (year, month, patch)


def read_version(text: str) -> SlurmVersion:
    """Read a version out of a text such as ``slurm-wlm 22.05.8``.

    Raises:
        SlurmOutputInvalid: there is none.
    """
    match = _VERSION.search(text)
    if match is None:
        raise SlurmOutputInvalid(f"no version of Slurm: {text.strip()[:80]!r}")
    return SlurmVersion(int(match[1]), int(match[2]), int(match[3] or 0))


@dataclass(frozen=True, slots=True)
class SlurmCommands:
    """Slurm's commands on this machine."""

    conf: str = ""
    """Path of slurm.conf; "": Slurm's own default."""
    folder: str = ""
    """Folder of the commands; "": PATH."""
    timeout_seconds: float = TIMEOUT_SECONDS
    deadline: float | None = None
    """Until when all commands have to be over (`time.monotonic`); None: each has its
    own time."""

    def version(self) -> SlurmVersion:
        """Return the version of the commands. Sends nothing to the controller."""
        return read_version(
            self._run("scontrol", "--version").decode("utf-8", "replace")
        )

    def ping(self) -> None:
        """Check that a controller answers.

        It takes milliseconds. The other commands repeat their request for about ten
        seconds while the controller is away.

        Raises:
            SlurmSilent: no controller answers.
        """
        try:
            said = replace(self, timeout_seconds=PING_SECONDS)._run("scontrol", "ping")
        except SlurmOutputInvalid as error:
            raise SlurmSilent(str(error)) from error
        if b" is UP" not in said:
            raise SlurmSilent("no controller answers (scontrol ping)")

    def nodes(self, version: SlurmVersion) -> list[SlurmNode]:
        """Return all nodes."""
        if version.since(*SCONTROL_JSON):
            return read_nodes(self._run("scontrol", "show", "nodes", "--json"))
        return read_nodes(self._run("sinfo", "--all", "--json"))

    def jobs(self) -> list[SlurmJob]:
        """Return the jobs that have GPUs now."""
        return read_jobs(self._run("squeue", "--all", "--json"))

    def placed_jobs(self) -> list[PlacedJob]:
        """Return the jobs that have nodes, those without GPUs included, and those that
        had some and ended within MinJobAge of slurm.conf (300 s by default)."""
        options = ("--all", "--noheader", "--states=all")
        output = self._run("squeue", *options, f"--format={placed_jobs.FORMAT}")
        return read_placed_jobs(output)

    def move_job(self, job_id: int, reservation: str) -> None:
        """Let a job count to a reservation. Slurm 22.05 does so for running jobs too.

        Raises:
            SlurmFailure: it does not.
        """
        self._run("scontrol", "update", f"JobId={job_id}", f"Reservation={reservation}")

    def reservations(self, version: SlurmVersion) -> list[SlurmReservation]:
        """Return all reservations."""
        if version.since(*SCONTROL_JSON):
            output = self._run("scontrol", "show", "reservations", "--json")
            return read_reservations(output)
        output = self._run("scontrol", "--oneliner", "show", "reservations")
        return read_reservation_lines(output)

    def config(self) -> dict[str, str]:
        """Return the settings of the controller, as ``scontrol show config`` prints
        them."""
        text = self._run("scontrol", "show", "config").decode("utf-8", "replace")
        found = (_SETTING.match(line) for line in text.splitlines())
        return {match[1]: match[2].strip() for match in found if match}

    def runs(self, start: datetime, end: datetime) -> list[SlurmRun]:
        """Return the runs with GPUs that were not over at the start, and began before
        the end. The cluster needs slurmdbd."""
        with self._sacct(start, end) as output:
            return read_sacct(_lines(output))

    def readable_runs(self, start: datetime, end: datetime) -> SacctReading:
        """Return the same as `runs`, and count the lines that cannot be read."""
        with self._sacct(start, end) as output:
            return read_sacct_lines(_lines(output))

    def _sacct(
        self, start: datetime, end: datetime
    ) -> AbstractContextManager[BinaryIO]:
        window = [
            f"--{name}time={at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"
            for name, at in (("start", start), ("end", end))
        ]
        options = ("--allusers", "--allocations", "--duplicates")
        shape = ("--parsable2", "--noheader", f"--format={','.join(FIELDS)}")
        slow = replace(self, timeout_seconds=SACCT_SECONDS)
        return slow._output("sacct", *options, *shape, *window)

    def admin_level(self, user: str) -> str:
        """Return the right of a Slurm user in slurmdbd: None, Operator or
        Administrator; "" if it does not know the user."""
        options = ("--noheader", "--parsable2", "show", "user", user)
        text = self._run("sacctmgr", *options, "format=AdminLevel")
        lines = text.decode("utf-8", "replace").split()
        return lines[-1] if lines else ""

    def create_reservation(self, name: str, fields: Mapping[str, str]) -> None:
        """Create a reservation of nodes or of their GPUs.

        Args:
            fields: the fields of scontrol(1), such as ``StartTime``.

        Raises:
            SlurmSilent: no controller answers. It may have created it.
            SlurmRefusal: Slurm refuses it.
        """
        self._change("create", "reservation", f"ReservationName={name}", fields)

    def update_reservation(self, name: str, fields: Mapping[str, str]) -> None:
        """Change the named fields of a reservation. Raises what
        `create_reservation` raises."""
        self._change("update", f"ReservationName={name}", "", fields)

    def may_reserve(self) -> bool:
        """Return whether Slurm lets this user make reservations.

        It asks for a change of one that does not exist, so nothing is changed. Slurm
        looks at the right first.

        Raises:
            SlurmFailure: no controller answers.
        """
        try:
            self.update_reservation(NO_RESERVATION, {"Duration": "1"})
        except SlurmRefusal as refusal:
            return refusal.answer is SlurmAnswer.UNKNOWN
        return True

    def delete_reservation(self, name: str) -> None:
        """Delete a reservation. Raises what `create_reservation` raises."""
        self._change("delete", f"ReservationName={name}", "", {})

    def cancel_jobs(self, reservation: str) -> None:
        """End the jobs in a reservation: TERM, and KILL after ``KillWait``.

        Raises:
            SlurmSilent: no controller answers.
        """
        self.ping()
        self._run("scancel", f"--reservation={reservation}")

    def _change(
        self, verb: str, first: str, second: str, fields: Mapping[str, str]
    ) -> None:
        words = [word for word in (first, second) if word]
        words += [f"{key}={value}" for key, value in fields.items()]
        # While the controller is away, scontrol would try for nine seconds.
        self.ping()
        try:
            self._run("scontrol", verb, *words)
        except SlurmOutputInvalid as error:
            answer = answer_of(str(error))
            if answer is SlurmAnswer.SILENT:
                raise SlurmSilent(str(error)) from error
            raise SlurmRefusal(str(error), answer) from error

    def _run(self, program: str, *arguments: str) -> bytes:
        with self._output(program, *arguments) as output:
            return output.read(MOST_BYTES + 1)

    @contextmanager
    def _output(self, program: str, *arguments: str) -> Iterator[BinaryIO]:
        """Run a command. Give what it printed as a file of any length."""
        path = shutil.which(program, path=self.folder or None)
        if path is None:
            where = self.folder or "PATH"
            raise SlurmNotInstalled(f"{program} is not in {where}")
        if self.conf and not Path(self.conf).is_file():
            # Slurm would wait for it.
            raise SlurmNotInstalled(f"there is no file {self.conf}")
        seconds = self.timeout_seconds
        if self.deadline is not None:
            seconds = min(seconds, self.deadline - time.monotonic())
        if seconds <= 0:
            raise SlurmSilent(f"{program}: no time is left to ask")
        # A file, because a pipe would have to be read without bounds.
        with tempfile.TemporaryFile() as output:
            try:
                done = subprocess.run(
                    [path, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.PIPE,
                    env=self._environment(),
                    timeout=seconds,
                )
            except subprocess.TimeoutExpired as error:
                raise SlurmSilent(f"{program}: no answer in {seconds:.0f} s") from error
            except OSError as error:
                raise SlurmNotInstalled(f"{program}: {error.strerror}") from error
            if done.returncode != 0:
                output.seek(max(0, output.seek(0, os.SEEK_END) - 2000))
                why = done.stderr or output.read()
                words = _one_line(why, done.returncode)
                raise SlurmOutputInvalid(f"{program}: {words}")
            output.seek(0)
            yield output

    def _environment(self) -> dict[str, str]:
        found = {
            "LC_ALL": "C",
            "PATH": os.environ.get("PATH", os.defpath),
            "SLURM_TIME_FORMAT": "%s",
            "TZ": "UTC",
        }
        return found | ({"SLURM_CONF": self.conf} if self.conf else {})


def _lines(output: BinaryIO) -> Iterator[bytes]:
    """Yield the lines, and longer ones in pieces that nobody can read."""
    return iter(lambda: output.readline(MOST_LINE_BYTES), b"")


def _one_line(text: bytes, status: int) -> str:
    words = " ".join(text[:2000].decode("utf-8", "replace").split())
    return words[:300] or f"exit status {status}"

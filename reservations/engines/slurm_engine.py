"""Slurm as an engine: one advance reservation for each hold, of whole nodes or of a
number of GPUs on each node.

Slurm does not change the number of GPUs of a reservation. So it is deleted, and created
with the new number. If that is refused, it is created as it was.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from reservations.engines.engine_port import (
    EngineAnswer,
    EngineAway,
    EngineCapabilities,
    EngineDeclined,
    EngineFailure,
    EngineView,
    HoldInfo,
)
from reservations.engines.hold_jobs import (
    gpus_of_jobs,
    has_room,
    holds_of_jobs,
    is_counted,
)
from reservations.engines.rules import as_counted, most_held_gpus
from reservations.rules.engine_names import reservation_of
from telemetry.slurm.gres import read_tres_cpus, read_tres_gpus, read_tres_kinds
from telemetry.slurm.placed_jobs import PlacedJob
from telemetry.slurm.slurm_commands import SlurmCommands
from telemetry.slurm.slurm_output import SlurmFailure
from telemetry.slurm.slurm_records import SlurmReservation
from telemetry.slurm.slurm_refusals import SlurmAnswer, SlurmRefusal

log = logging.getLogger(__name__)
FLAG = "MAGNETIC"
"""Jobs of its users run in the reservation without naming it."""
_TAKEN = (SlurmAnswer.DUPLICATE, SlurmAnswer.OVERLAP, SlurmAnswer.BUSY)
_ANSWERS = {
    SlurmAnswer.OVERLAP: EngineAnswer.TAKEN,
    SlurmAnswer.BUSY: EngineAnswer.BUSY,
    SlurmAnswer.IN_USE: EngineAnswer.IN_USE,
    SlurmAnswer.NO_USER: EngineAnswer.NO_USER,
    SlurmAnswer.DENIED: EngineAnswer.DENIED,
}


@dataclass(frozen=True, slots=True)
class SlurmEngine:
    """The cluster of `SLURM_CLUSTER`."""

    commands: SlurmCommands
    site: str
    """The portal's id in the names of its holds."""

    def capabilities(self) -> EngineCapabilities:
        """Return that Slurm has to be told of reservations."""
        return EngineCapabilities(holds=True)

    def within(self, seconds: float) -> SlurmEngine:
        """Return this engine with commands that end in time."""
        deadline = time.monotonic() + seconds
        return replace(self, commands=replace(self.commands, deadline=deadline))

    def reserve(self, hold: HoldInfo, *, now: datetime, lost: bool = False) -> None:
        """Create a reservation, or change the one that has the name.

        One in which jobs of other people run is not taken over.
        """
        try:
            self._create(hold, now=now)
        except SlurmRefusal as refusal:
            if lost and refusal.answer is SlurmAnswer.BUSY:
                self._reserve_around(hold, refusal, now=now)
                return
            # An earlier request may have been carried out although its answer was lost.
            seen = None
            if refusal.answer in _TAKEN:
                view = self.observe(now=now)
                seen = view.holds.get(hold.name)
                if seen and view.running.get(hold.name) and seen.users != hold.users:
                    seen = None
            if seen is None:
                raise self._declined(refusal, hold) from refusal
            self.change(hold, seen=seen, now=now)
        except SlurmFailure as error:
            raise EngineAway(str(error)) from error

    def _reserve_around(
        self, hold: HoldInfo, refusal: SlurmRefusal, *, now: datetime
    ) -> None:
        """Create a reservation beside jobs of its users, and let them count to it.

        They ran in the reservation that Slurm has lost, so they are not in the way.
        Jobs of other people on the other GPUs of a node are not in the way either.

        Raises:
            EngineDeclined: other people's jobs have what it needs, or none of its
                users' jobs is shown.
        """
        try:
            jobs = _jobs_on(hold, self.commands.placed_jobs())
            own = [job for job in jobs if job.user in hold.users]
            gpus = gpus_of_jobs(self.commands.jobs()) if hold.gpus_each else Counter()
            others = self._others(hold) if hold.gpus_each else []
            if not own or not has_room(hold, others, jobs, gpus):
                raise self._declined(refusal, hold) from refusal
            fields = creation_fields(hold, now=now)
            flags = f"{fields['Flags']},IGNORE_JOBS"
            self.commands.create_reservation(hold.name, fields | {"Flags": flags})
        except SlurmRefusal as again:
            raise self._declined(again, hold) from again
        except SlurmFailure as error:
            raise EngineAway(str(error)) from error
        if hold.gpus_each:
            told = holds_of_jobs(own, [hold], gpus, now=now)
            own = [job for job, name in told if name == hold.name]
        for job in own:
            try:
                self.commands.move_job(job.job_id, hold.name)
            except SlurmFailure as error:
                # `observe` counts it all the same.
                log.warning("job %s stays beside %s: %s", job.job_id, hold.name, error)

    def _others(self, hold: HoldInfo) -> list[HoldInfo]:
        """Return all reservations but one.

        Raises:
            SlurmFailure.
        """
        found = self.commands.reservations(self.commands.version())
        return [hold_of(one) for one in found if one.name != hold.name]

    def change(self, hold: HoldInfo, *, seen: HoldInfo, now: datetime) -> None:
        """Change the fields that differ, all by one command, or make it again."""
        hold = as_counted(hold, seen)
        try:
            if is_made_again(hold, seen):
                self._make_again(hold, seen, now=now)
            elif fields := changed_fields(hold, seen, now=now):
                self.commands.update_reservation(hold.name, fields)
        except SlurmRefusal as refusal:
            raise self._declined(refusal, hold) from refusal
        except SlurmFailure as error:
            raise EngineAway(str(error)) from error

    def check_rights(self) -> None:
        """Check that the portal's user is an operator. PrivateData of slurm.conf hides
        reservations from others."""
        try:
            if not self.commands.may_reserve():
                why = "the portal's user has no right to reserve"
                raise EngineDeclined(why, EngineAnswer.DENIED)
        except SlurmFailure as error:
            raise EngineAway(str(error)) from error

    def _create(self, hold: HoldInfo, *, now: datetime) -> None:
        """Create a reservation. If the processors near the GPUs are not free, take one
        for each GPU.

        Raises:
            SlurmFailure.
        """
        try:
            self.commands.create_reservation(hold.name, creation_fields(hold, now=now))
        except SlurmRefusal as refusal:
            fewer = replace(hold, cpus_each=hold.gpus_each)
            if refusal.answer is not SlurmAnswer.BUSY or fewer.cpus_each in (
                0,
                hold.cpus_each,
            ):
                raise
            self.commands.create_reservation(hold.name, creation_fields(fewer, now=now))

    def _make_again(self, hold: HoldInfo, seen: HoldInfo, *, now: datetime) -> None:
        self.commands.delete_reservation(hold.name)
        try:
            self._create(hold, now=now)
        except SlurmRefusal:
            self._create(seen, now=now)
            raise

    def release(self, name: str) -> None:
        """Delete the reservation."""
        try:
            self.commands.delete_reservation(name)
        except SlurmRefusal as refusal:
            if refusal.answer is not SlurmAnswer.UNKNOWN:
                raise self._declined(refusal) from refusal
        except SlurmFailure as error:
            raise EngineAway(str(error)) from error

    def stop(self, name: str) -> None:
        """Cancel the jobs of the reservation, those of other submitters included."""
        try:
            self.commands.cancel_jobs(name)
        except SlurmFailure as error:
            raise EngineAway(str(error)) from error

    def observe(self, *, now: datetime) -> EngineView:
        """Read the reservations and the jobs in them."""
        try:
            self.commands.ping()
            version = self.commands.version()
            found = self.commands.reservations(version)
            jobs = self.commands.placed_jobs()
            holds = {one.name: hold_of(one) for one in found if self._is_ours(one)}
            counted = is_counted(jobs, holds.values(), now=now)
            gpus = gpus_of_jobs(self.commands.jobs()) if counted else Counter()
        except SlurmFailure as error:
            raise EngineAway(str(error)) from error
        told = holds_of_jobs(jobs, holds.values(), gpus, now=now)
        return EngineView(
            at=now,
            holds=holds,
            running=Counter(name for job, name in told if name and job.runs),
            used=frozenset(name for _job, name in told if name),
            others=tuple(hold_of(one) for one in found if not self._is_ours(one)),
        )

    def _declined(
        self, refusal: SlurmRefusal, hold: HoldInfo | None = None
    ) -> EngineFailure:
        """Return a refusal as the port has it.

        Slurm says "Invalid user id" of an unknown user, and to a portal that may not
        reserve.

        Args:
            hold: what was asked for. None: a release.
        """
        answer = _ANSWERS.get(refusal.answer, EngineAnswer.OTHER)
        try:
            if answer is EngineAnswer.NO_USER and not self.commands.may_reserve():
                answer = EngineAnswer.DENIED
        except SlurmFailure as error:
            return EngineAway(str(error))
        taken = answer in (EngineAnswer.TAKEN, EngineAnswer.BUSY)
        if not taken or hold is None or not hold.gpus_each:
            return EngineDeclined(str(refusal), answer)
        try:
            held = most_held_gpus(hold, self._others(hold))
        except SlurmFailure:
            return EngineDeclined(str(refusal), EngineAnswer.SHORT)
        return EngineDeclined(str(refusal), EngineAnswer.SHORT, held)

    def _is_ours(self, found: SlurmReservation) -> bool:
        return reservation_of(self.site, found.name) is not None


def creation_fields(hold: HoldInfo, *, now: datetime) -> dict[str, str]:
    """Return the fields of ``scontrol create reservation`` (scontrol(1))."""
    flags = [FLAG]
    if hold.idle_seconds:
        flags.append(f"PURGE_COMP={_clock(hold.idle_seconds)}")
    name = f"gres/gpu:{hold.kind}" if hold.kind else "gres/gpu"
    gpus = f"cpu={hold.cpus_each},{name}={hold.gpus_each}"
    return {
        # Slurm refuses a start in the past.
        "StartTime": _time(hold.start) if hold.start > now else "now",
        "EndTime": _time(hold.end),
        "Users": ",".join(hold.users),
        "Nodes": ",".join(hold.nodes),
        "Flags": ",".join(flags),
    } | ({"TRESPerNode": gpus} if hold.gpus_each else {})


def is_made_again(hold: HoldInfo, seen: HoldInfo) -> bool:
    """Return whether Slurm cannot change the one hold to the other."""
    moves = hold.nodes != seen.nodes and bool(hold.gpus_each or seen.gpus_each)
    return moves or (hold.gpus_each, hold.kind) != (seen.gpus_each, seen.kind)


def changed_fields(hold: HoldInfo, seen: HoldInfo, *, now: datetime) -> dict[str, str]:
    """Return the fields of ``scontrol update`` that make the one hold the other.

    Slurm does not move the start of a reservation that has begun. With a new start and
    no end it would move the end, too.
    """
    fields = {}
    moves = hold.start != seen.start and seen.start > now
    if moves:
        fields["StartTime"] = _time(hold.start) if hold.start > now else "now"
    if moves or hold.end != seen.end:
        fields["EndTime"] = _time(hold.end)
    if hold.users != seen.users:
        fields["Users"] = ",".join(hold.users)
    if hold.nodes != seen.nodes:
        fields["Nodes"] = ",".join(hold.nodes)
    if hold.idle_seconds != seen.idle_seconds:
        purge = f"PURGE_COMP={_clock(hold.idle_seconds)}"
        key = "Flags+" if hold.idle_seconds else "Flags-"
        fields[key] = purge if hold.idle_seconds else "PURGE_COMP"
    return fields


def hold_of(found: SlurmReservation) -> HoldInfo:
    """Return a reservation of Slurm as a hold. Slurm names the GPUs and the processors
    of all its nodes together."""
    nodes = max(1, len(found.nodes))
    kinds = read_tres_kinds(found.tres)
    gpus = -(-read_tres_gpus(found.tres) // nodes)
    return HoldInfo(
        name=found.name,
        start=datetime.fromtimestamp(found.start, UTC),
        end=datetime.fromtimestamp(found.end, UTC),
        nodes=tuple(sorted(found.nodes)),
        users=tuple(sorted(found.users)),
        idle_seconds=found.purge_seconds,
        gpus_each=gpus,
        kind=kinds[0][0] if len(kinds) == 1 else "",
        cpus_each=read_tres_cpus(found.tres) // nodes if gpus else 0,
    )


def _jobs_on(hold: HoldInfo, jobs: Iterable[PlacedJob]) -> list[PlacedJob]:
    """Return the jobs that run on a node of a hold."""
    nodes = set(hold.nodes)
    return [job for job in jobs if job.runs and nodes & set(job.nodes)]


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"


def _clock(seconds: int) -> str:
    """Return a span as scontrol reads it.

    >>> _clock(900)
    '00:15:00'
    """
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest:02}"
